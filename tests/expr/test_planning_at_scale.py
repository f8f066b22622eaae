"""The cost files of expr/planning_at_scale, the roofline that makes them, and its sweep."""

from __future__ import annotations

import csv
import importlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import tensorflow as tf

from ooodist.graph.units import Unit
from ooodist.planner.costs import StepCosts
from ooodist.util import strict_yaml, yaml_dataclass
from tests.fork_server import fast_python
from tests.jobs import ROOT

FOLDER = ROOT / "expr/planning_at_scale"
MODELS = ("resnet50", "vgg16", "bert_24")


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield {name: importlib.import_module(name) for name in ("make_costs", "roofline")}


def unit(name: str, ops: list[tf.Operation]) -> Unit:
    return Unit(name, "F", (), 0, tuple(ops), frozenset(), 0)


def read(model: str) -> StepCosts:
    text = (FOLDER / "costs" / f"{model}.yaml").read_text(encoding="utf-8")
    costs: StepCosts = yaml_dataclass.read(StepCosts, strict_yaml.parse(text, model))
    return costs


@pytest.mark.parametrize("model", MODELS)
def test_a_cost_file_is_a_whole_step_that_takes_as_long_as_published(
    model: str, scripts: dict[str, ModuleType]
) -> None:
    costs = read(model)
    published = {item.model: item for item in scripts["make_costs"].PUBLISHED}[model]
    update = sum(weight.update_seconds for weight in costs.weights)
    step = costs.compute_seconds - (update if published.update_apart else 0)
    assert step == pytest.approx(published.batch / published.samples_per_second, rel=1e-3)
    entering = [weight for unit in costs.forward for weight in unit.weights]
    completed = [weight for unit in costs.backward for weight in unit.weights]
    names = [weight.name for weight in costs.weights]
    assert sorted(entering) == sorted(completed) == sorted(names)
    done: set[str] = set()
    for cost in (*costs.forward, *costs.backward):
        assert {*cost.needs} <= done
        done.add(cost.name)


def test_a_cost_file_is_what_its_model_gives(scripts: dict[str, ModuleType]) -> None:
    make_costs = scripts["make_costs"]
    published = next(item for item in make_costs.PUBLISHED if item.model == "vgg16")
    step = make_costs.trace("vgg16", published.data, published.batch)
    made, efficiency = make_costs.step_costs(published, step, make_costs.V100)
    assert made == read("vgg16")
    assert 0.2 < efficiency < 1
    arithmetic = sum(scripts["roofline"].flops(op) for unit in step.forward for op in unit.ops)
    # 15.47 thousand million multiplications an image (Simonyan and Zisserman's network D).
    assert arithmetic / published.batch == pytest.approx(2 * 15.47e9, rel=0.001)


def test_a_product_takes_its_arithmetic_or_its_memory_traffic(
    scripts: dict[str, ModuleType],
) -> None:
    gpu = scripts["roofline"].Gpu("toy", 1e6, 1e3, 1e4)
    with tf.Graph().as_default():
        a = tf.compat.v1.placeholder(tf.float16, (8, 16))
        b = tf.compat.v1.placeholder(tf.float16, (4, 16))
        half = unit("half", [tf.matmul(a, b, transpose_b=True).op])
        single = unit("single", [tf.matmul(tf.zeros((8, 16)), tf.zeros((16, 4))).op])
    seconds = gpu.seconds([half, single])
    assert seconds["half"] == pytest.approx((8 * 16 + 16 * 4 + 8 * 4) * 2 / 1e4)
    assert seconds["single"] == pytest.approx(2 * 8 * 16 * 4 / 1e3)


def test_elementwise_ops_are_fused_up_to_what_others_read(scripts: dict[str, ModuleType]) -> None:
    gpu = scripts["roofline"].Gpu("toy", 1e6, 1e6, 1.0)
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, (10,))
        hidden = tf.reshape(tf.tanh(x), (5, 2))
        shared = hidden * 2.0
        last = tf.exp(shared)
        product = tf.matmul(shared, last, transpose_b=True)
        first = unit("first", [hidden.op.inputs[0].op, hidden.op, shared.op])
        second = unit("second", [last.op])
        third = unit("third", [product.op])
    constant = 4
    seconds = gpu.seconds([first, second, third])
    # tanh is never written; what the product reads is, and is read again by the second unit.
    assert seconds == {"first": 40 + constant + 40, "second": 40 + 40, "third": 40 + 40 + 100}


def test_the_sweep_predicts_a_case(tmp_path: Path) -> None:
    case = ["--models", "vgg16", "--workers", "16", "--bandwidths", "10", "--engines", "horovod"]
    job = subprocess.run(
        [fast_python(), FOLDER / "run.py", *case, "--output", tmp_path],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert job.returncode == 0, job.stdout
    assert "1/1 vgg16 horovod 10 Gbit/s 16 workers" in job.stdout
    assert "| VGG16 | ring (Horovod) | 10 |" in job.stdout
    with (tmp_path / "predictions.csv").open(newline="", encoding="utf-8") as file:
        seconds = {row["plan"]: float(row["step_seconds"]) for row in csv.DictReader(file)}
    assert seconds.keys() == {
        *("baseline", "baseline_tuned", "priority_tuned"),
        *("planned", "carried", "narrow", "lower_bound"),
    }
    # A call of the planned one waits for its last exchange, and sends twice the bytes of narrow.
    assert seconds["lower_bound"] <= seconds["carried"] < seconds["planned"]
    assert seconds["narrow"] < seconds["carried"]
    # The wire takes 0.83 s a step, as long as the units do: baseline leaves a good part of it bare.
    assert seconds["baseline_tuned"] > 1.05 * seconds["planned"]
    for suffix in ("png", "svg"):
        assert (tmp_path / f"figure.{suffix}").stat().st_size > 10_000
