"""expr/pipe_par, emulated devices: cost files, what is compared, a short run, and the tables."""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from ooodist.planner.pipeline.layer_costs import merged, read_model_costs, stage_costs
from ooodist.planner.pipeline.plan import PipelinePlan, make_plan
from tests.expr.scripts import load
from tests.jobs import ROOT

FOLDER = ROOT / "expr/pipe_par"
NAMES = ("make_costs", "emulated", "emulated_report")
FILES = [(model, link) for model in ("bert_24", "bert_48") for link in ("nvlink", "10gbe")]


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        # Others are called make_costs as well.
        yield {name: load("pipe_par", name) for name in NAMES}


@pytest.mark.parametrize(("model", "link"), FILES)
def test_a_cost_file_is_what_the_formulas_give(
    model: str, link: str, scripts: dict[str, ModuleType]
) -> None:
    make_costs = scripts["make_costs"]
    costs = read_model_costs(FOLDER / f"costs/{model}_{link}.yaml")
    assert costs == make_costs.model_costs(make_costs.LAYERS[model], make_costs.LINKS[link])
    assert len({replace(layer, name="") for layer in costs.layers}) == 1
    layer = costs.layers[0]
    assert layer.forward == layer.input_gradient == layer.weight_gradient > 0
    # s b h (34 + 5 a s / h) with s = 128, b = 2, h = 1024, a = 16
    assert layer.input_bytes + layer.weight_bytes == 128 * 2 * 1024 * (34 + 10)
    assert layer.sent_bytes == 512 << 10


@pytest.mark.parametrize("model", ["bert_12", "bert_24", "bert_36", "bert_48"])
def test_halves_are_together_a_layer(model: str, scripts: dict[str, ModuleType]) -> None:
    make_costs = scripts["make_costs"]
    costs = read_model_costs(FOLDER / f"costs/{model}_halves.yaml")
    link, number = make_costs.LINKS["nvlink"], make_costs.IN_HALVES[model]
    assert costs == make_costs.model_costs(number, link, in_halves=True)
    layers = merged(costs.layers, [range(at, at + 2) for at in range(0, 2 * number, 2)])
    for half, layer in zip(layers, make_costs.model_costs(number, link).layers, strict=True):
        assert half.seconds == pytest.approx(layer.seconds, rel=1e-3)  # both are rounded
        times = layer.forward, layer.input_gradient, layer.weight_gradient
        same = replace(half, name=layer.name, forward=times[0], input_gradient=times[1])
        assert replace(same, weight_gradient=times[2]) == layer
    attention, mlp = costs.layers[:2]
    assert attention.exchanged_bytes + mlp.exchanged_bytes == 4 * (12 * 1024**2 + 13 * 1024)
    assert attention.base_bytes + mlp.base_bytes == 18 * (12 * 1024**2 + 13 * 1024)


def test_the_rate_is_that_of_the_published_speed(scripts: dict[str, ModuleType]) -> None:
    make_costs = scripts["make_costs"]
    seconds = read_model_costs(FOLDER / "costs/bert_24_nvlink.yaml")
    of_layers = sum(layer.seconds for layer in seconds.layers) / make_costs.SENTENCES
    of_head = 3 * make_costs.head_flops(1) / make_costs.RATE
    assert of_layers + of_head == pytest.approx(1 / 168.63, rel=1e-3)
    # 302 million weights in 24 layers, two operations each: 24 h^2 a word, and the attention's.
    assert 24 * make_costs.layer_flops(1) == pytest.approx(2 * 302e6 * 128, rel=0.03)


def test_settings_have_names_of_their_own(scripts: dict[str, ModuleType]) -> None:
    settings = list(scripts["emulated"].settings())
    assert len({setting.name for setting in settings}) == len(settings) == 14
    assert {setting.ranks for setting in settings} == {4, 8, 16}


@pytest.fixture(scope="module")
def rows(scripts: dict[str, ModuleType]) -> dict[str, PipelinePlan]:
    """Of the first setting in which links cost something."""
    emulated = scripts["emulated"]
    made: dict[str, PipelinePlan] = emulated.make_rows(emulated.Setting("bert_24", "10gbe", 4, 4))
    return made


def test_rows_are_tuned_and_fit(
    scripts: dict[str, ModuleType], rows: dict[str, PipelinePlan]
) -> None:
    setting = scripts["emulated"].Setting("bert_24", "10gbe", 4, 4)
    assert set(rows) == set(scripts["emulated_report"].ROWS)
    seconds = {name: plan.timeline.step_seconds for name, plan in rows.items()}
    for name in ("interleaved", "modulo"):
        chunks = [make_plan(setting.costs, 4, 4, name, number) for number in (2, 3, 4, 6)]
        assert seconds[name] == min(plan.timeline.step_seconds for plan in chunks)
    peak = max(rows["1f1b"].timeline.peak_bytes)
    assert max(rows["auto_equal_memory"].timeline.peak_bytes) <= peak
    assert seconds["auto_equal_memory"] <= seconds["1f1b"]
    single = [name for name, plan in rows.items() if plan.schedule.stages == 4]
    assert {"gpipe", "1f1b", "zb_h1", "zb_h2"} <= set(single)
    assert seconds["auto"] <= min(seconds[name] for name in (*single, "zb_v"))
    for plan in rows.values():
        assert plan.costs.stages == stage_costs(setting.costs, plan.parts).stages


def test_a_short_run(
    scripts: dict[str, ModuleType],
    rows: dict[str, PipelinePlan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here: run ooodist-engines mpi")
    emulated = scripts["emulated"]
    monkeypatch.setattr(emulated, "make_rows", lambda _: rows)
    monkeypatch.setattr(emulated, "ACTION_SECONDS", 5e-3)
    options = ["--settings", "bert_24_10gbe_4x4", "--repeats", "2", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["emulated.py", *options])
    emulated.main()
    with (tmp_path / "emulated.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["repeat"] for line in lines] == ["0"] * 9 + ["1"] * 9
    assert len({line["row"] for line in lines}) == 9
    for line in lines:
        assert 0.99 < float(line["seconds"]) / float(line["simulated"]) < 3  # on a busy machine
        assert float(line["overhead"]) > 0
    text = (tmp_path / "emulated_results.md").read_text(encoding="utf-8")
    assert "| BERT-24, 10 GbE-like | 4 x 4 | interleaved 1F1B, tuned | " in text
    for suffix in ("png", "svg"):
        assert (tmp_path / f"emulated.{suffix}").stat().st_size > 10_000


def write(scripts: dict[str, ModuleType], file: Path, auto: float, overhead: float) -> None:
    """Two settings, three repeats of each row; all rows but auto's take as long as 1F1B."""
    columns = scripts["emulated"].COLUMNS
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        for ranks, microbatches in ((4, 4), (8, 16)):
            for row in scripts["emulated_report"].ROWS:
                seconds = auto if row.startswith("auto") else 2.0
                for repeat, more in enumerate((0.0, 0.1, -0.1)):
                    writer.writerow(
                        dict.fromkeys(columns, 1)
                        | {"model": "bert_24", "link": "nvlink", "row": row, "repeat": repeat}
                        | {"ranks": ranks, "microbatches": microbatches, "placement": "in turn"}
                        | {"seconds": seconds + more, "simulated": 0.99 * seconds}
                        | {"factor": 50, "overhead": overhead, "bubble": 0.1}
                    )


@pytest.mark.parametrize(
    ("auto", "overhead", "met", "missed"),
    [
        (1.25, 0.2e-3, ["| 1.60x | met |", "| 1.40x | 1.60x | met |", "0.20 ms | met |"], 0),
        (1.6, 0.6e-3, ["| 1.20x | 1.25x | met |", "| 1.25x | **missed** |", "0.60 ms | **"], 2),
    ],
)
def test_the_report_says_which_bars_are_met(
    tmp_path: Path,
    scripts: dict[str, ModuleType],
    auto: float,
    overhead: float,
    met: list[str],
    missed: int,
) -> None:
    file = tmp_path / "emulated.csv"
    write(scripts, file, auto, overhead)
    scripts["emulated_report"].write(file)
    text = (tmp_path / "emulated_results.md").read_text(encoding="utf-8")
    for wanted in met:
        assert wanted in text
    assert text.count("**missed**") == missed
    assert "-1.0% (18 of 18 rows within 3 %)" in text
    # Of the devices: 2 s and 1.98 s, 50 times as fast
    assert "| 8 x 16 | 1F1B | 1 | 39.60 | 40.00 (38.00 to 42.00) | -1.0% | 1.00x |" in text


def test_a_setting_is_replaced_and_others_stay(
    tmp_path: Path, scripts: dict[str, ModuleType]
) -> None:
    file = tmp_path / "emulated.csv"
    write(scripts, file, 1.5, 0.1e-3)
    emulated = scripts["emulated"]
    is_kept = partial(emulated.is_of_another, emulated.Setting("bert_24", "nvlink", 8, 16))
    emulated.keep_lines(file, emulated.COLUMNS, is_kept)
    assert set(scripts["emulated_report"].read(file)) == {("bert_24", "nvlink", 4, 4)}
    emulated.keep_lines(tmp_path / "new.csv", emulated.COLUMNS, is_kept)
    assert scripts["emulated_report"].read(tmp_path / "new.csv") == {}
