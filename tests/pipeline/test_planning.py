"""Stages planned from a file with the costs of the layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import keras
import pytest

from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.pipeline.planning import plan_stages, read_costs, warn_if_one_process_is_faster
from ooodist.pipeline.stages import calls_of
from ooodist.planner.pipeline.layer_costs import LayerCost, ModelCosts
from ooodist.settings.sections import ParallelConfig
from ooodist.util import yaml_dataclass

NAMES = ["first", "twice", "twice:2", "last"]


def build() -> keras.Model:
    image = keras.Input((4,))
    twice = keras.layers.Dense(4, name="twice")
    x = twice(twice(keras.layers.Dense(4, name="first")(image)))
    model = keras.Model(image, keras.layers.Dense(4, name="last")(x))
    model.compile("sgd", "mean_squared_error")
    return model


def written(folder: Path, *names: str) -> Path:
    """The last layer takes as long as all others."""
    layers = tuple(LayerCost(name, forward=1.0, base_bytes=9, weight_bytes=1) for name in names)
    layers = (*layers[:-1], replace(layers[-1], forward=3.0))
    file = folder / "costs.yaml"
    # Limit and recomputation are the job's, whatever the file says.
    yaml_dataclass.write_file(ModelCosts(layers, memory_limit=1, recompute=True), file)
    return file


def test_a_pipeline_that_should_be_slower_than_one_process_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path, *NAMES)
    parallel = ParallelConfig(pipeline=2, microbatches=2, chunks=1, costs=str(file))
    plan = plan_stages(build(), None, parallel, LocalEngine(), is_live=True)
    alone = 2 * sum(c.forward + c.input_gradient + c.weight_gradient for c in plan.costs.stages)
    for sending, replicas, measured, is_said in (
        (0.0, 1, None, False),
        (30.0, 1, None, True),
        (30.0, 9, None, False),
        (0.0, 1, 0.1, True),
        (30.0, 1, 1e3, False),
    ):
        caplog.clear()
        stages = tuple(replace(cost, send_seconds=sending) for cost in plan.costs.stages)
        costs = replace(plan.costs, stages=stages)
        slow = replace(plan, costs=costs, seconds_alone=measured)
        warn_if_one_process_is_faster(slow, slow.timeline.step_seconds, replicas)
        said = (
            f"one process with the cores of a rank should take {(measured or alone) * 1e3:.1f} ms"
        )
        assert (said in caplog.text) is is_said


@pytest.mark.parametrize("split", [None, ["last"]])
@pytest.mark.parametrize(
    ("clipnorm", "skips", "has_barrier"),
    [(None, False, False), (1.0, False, True), (None, True, True)],
)
def test_the_first_plan_counts_steps_as_they_will_run(
    tmp_path: Path,
    split: list[str] | None,
    clipnorm: float | None,
    skips: bool,
    has_barrier: bool,
) -> None:
    """With a barrier only if the update needs something of all gradients."""
    model = build()
    model.compile(keras.optimizers.SGD(global_clipnorm=clipnorm), "mean_squared_error")
    costs = None if split else str(written(tmp_path, *NAMES))
    parallel = ParallelConfig(pipeline=2, microbatches=2, costs=costs, split=split)
    plan = plan_stages(model, None, parallel, LocalEngine(), is_live=True, skips=skips)
    assert plan.costs.has_barrier is has_barrier


@pytest.mark.parametrize("is_live", [False, True])
def test_stages_are_balanced_by_the_costs_of_the_file(tmp_path: Path, is_live: bool) -> None:
    """Nothing is measured: there is no batch that could be."""
    file = written(tmp_path, *NAMES)
    parallel = ParallelConfig(pipeline=2, microbatches=2, chunks=1, costs=str(file))
    plan = plan_stages(build(), None, parallel, LocalEngine(), is_live=is_live)
    assert plan.parts == (range(3), range(3, 4))
    assert [stage.forward for stage in plan.costs.stages] == [3.0, 3.0]
    assert plan.costs.memory_limit is None
    limited = replace(parallel, memory_bytes=20)
    with pytest.raises(UserError, match="raise the limit by"):
        plan_stages(build(), None, replace(limited, memory_bytes=19), LocalEngine())
    plan = plan_stages(build(), None, limited, LocalEngine(), is_live=is_live)
    assert plan.parts == (range(2), range(2, 4))  # 2 x 9 bytes, and 2 of a micro-batch
    assert plan.costs.memory_limit == 20
    roomy = replace(parallel, memory_bytes=33)  # 27 + 2 x 3 bytes would fill it
    plan = plan_stages(build(), None, roomy, LocalEngine(), is_live=is_live)
    assert max(plan.timeline.peak_bytes) <= 32
    assert plan.costs.memory_limit == 33


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["first", "twice", "last"], "of 3 layers, of which number 2 is last, but that of the mod"),
        (["first", "twice", "twice:2"], "number 3 ends, but that of the model is last"),
        ([*NAMES, "more"], "number 4 is more, but the model ends"),
        (["head", *NAMES[1:]], "number 0 is head, but that of the model is first; measure them"),
    ],
)
def test_costs_of_another_model(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_costs(written(tmp_path, *names), calls_of(build()))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"parallel\.costs .*none\.yaml cannot be read"):
        read_costs(tmp_path / "none.yaml", [])


def test_costs_and_a_split() -> None:
    with pytest.raises(UserError, match=r"costs is mine\.yaml, .* leave the one or the other out"):
        ParallelConfig(pipeline=2, costs="mine.yaml", split=("last",))


def test_a_sharded_optimizer_needs_less_memory(tmp_path: Path) -> None:
    file = tmp_path / "sharded.yaml"
    layers = tuple(
        LayerCost(name, forward=1.0, base_bytes=9, state_bytes=8, optimizer_bytes=6)
        for name in NAMES
    )
    file.write_text(yaml_dataclass.dump(ModelCosts(layers)), "utf-8")
    whole = ParallelConfig(
        pipeline=2, data=3, microbatches=2, chunks=1, costs=str(file), memory_bytes=10
    )
    with pytest.raises(UserError, match="raise the limit by"):
        plan_stages(build(), None, whole, LocalEngine())
    plan = plan_stages(build(), None, replace(whole, shard_optimizer=True), LocalEngine())
    assert [stage.base_bytes for stage in plan.costs.stages] == [10, 10]


def test_nothing_to_share_an_optimizer_with() -> None:
    with pytest.raises(UserError, match=r"shard_optimizer is true, but parallel\.data is 1"):
        ParallelConfig(pipeline=2, shard_optimizer=True)
