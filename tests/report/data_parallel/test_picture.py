"""The picture of timelines: what is drawn, and that its files are whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from ooodist.planner.costs import Network, StepCosts, UnitCost
from ooodist.planner.data_parallel.plan import Plan, with_carried
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.report.data_parallel.charts import calls_within, deferred_units, simulated
from ooodist.report.picture import draw, write
from tests.planner.chains import chain_costs, each_alone

COSTS = chain_costs([1, 2, 3], update=0.5)
NETWORK = Network("horovod", 2, seconds_per_byte=1.0)
STOCK = Plan("baseline", None, each_alone("w3", "w2", "w1"))
LATER = Plan("later", ("W3", "X3", "X2", "W1", "W2"), each_alone("w3", "w1", "w2"))
F, DX, DW, MOVED, EXPOSED = "#56b4e9", "#e69f00", "#8fd0ae", "#00714f", "#d62f1f"


def drawn(
    *plans: Plan, network: Network = NETWORK, costs: StepCosts = COSTS, title: str = "title"
) -> Figure:
    """Two steps of the first plan, and what the others do in that time."""
    simulations = [Simulator(costs, network).run(plan) for plan in plans]
    seconds = 2 * simulations[0].step_seconds
    charts = [
        simulated(
            simulation,
            costs,
            network,
            name="",
            title=plan.name,
            calls=calls_within(seconds, simulation),
            order=plan.order,
        )
        for plan, simulation in zip(plans, simulations, strict=True)
    ]
    return draw(charts, title, seconds)


def widths(axes: Axes, color: str) -> list[float]:
    """Of the bars of a color, in seconds."""
    found = []
    for collection in axes.collections:
        assert isinstance(collection, PolyCollection)
        if to_hex(collection.get_facecolor()[0]) == color:
            for path in collection.get_paths():
                left, right = path.vertices[:, 0].min(), path.vertices[:, 0].max()
                found.append((right - left) / 1e3)
    return found


def shown(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_bars_have_the_lengths_of_the_simulation() -> None:
    # F 3, then W3 X3 W2 X2 W1 until 8; w3 from 4 to 7, w2 from 7 to 9, w1 from 9 to 10
    (axes,) = drawn(STOCK).axes
    assert sum(widths(axes, F)) == pytest.approx(2 * 3)
    assert sum(widths(axes, DX)) == pytest.approx(2 * 2)
    assert sum(widths(axes, DW)) == pytest.approx(2 * 3)
    assert widths(axes, MOVED) == []
    # w3 is updated from 8 to 8.5; then computation waits until w2 has come, and again for w1
    assert sum(widths(axes, EXPOSED)) == pytest.approx(2 * (0.5 + 0.5))


def test_what_is_moved_stands_out() -> None:
    assert deferred_units(COSTS.backward, None) == frozenset()
    assert deferred_units(COSTS.backward, ("W3", "X3", "X2", "W1", "W2")) == {"W2"}
    assert deferred_units(COSTS.backward, ("X3", "X2", "W1", "W2", "W3")) == {"W2", "W3"}
    above, below = drawn(STOCK, LATER).axes
    assert widths(above, MOVED) == []
    assert sum(widths(below, MOVED)) == pytest.approx(2)


def test_the_legend_has_the_words_of_the_glossary() -> None:
    (legend,) = drawn(STOCK, LATER).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:4] == [
        *("F: forward", "dX: input gradient", "dW: weight gradient", "dW, moved later")
    ]
    assert "exchange, not hidden" in names
    assert not [name for name in names if "launch" in name]


def test_steps_are_numbered_to_the_end_of_the_first_panel() -> None:
    figure = drawn(STOCK, replace(LATER, steps_per_execution=3))
    assert [text.strip() for text in shown(figure) if "step" in text] == [
        *("step 1", "step 2"),
        *("step 1", "step 2", "step 3"),
    ]
    left, right = figure.axes[0].get_xlim()
    assert (left, right) == (0, pytest.approx(2 * 10.5 * 1e3))
    assert figure.axes[1].get_xlabel() == "time (ms)"


def test_carried_exchanges_stand_at_the_begin_of_the_next_call() -> None:
    # w1 until 1, w2 until 3, w3 until 6; F1 runs until 2.5, F2 until 4.5: each waits for its own
    names = ("w1", "w2", "w3")
    carrying = with_carried(Plan("all", LATER.order, each_alone(*names)), names)
    simulation = Simulator(COSTS, NETWORK).run(carrying)
    assert [span.step for span in simulation.exchanges] == [-1, -1, -1]
    (axes,) = drawn(carrying).axes
    assert sum(widths(axes, EXPOSED)) == pytest.approx(2 * (1 + 0.5 + 1.5))


def test_pushes_stand_above_pulls() -> None:
    servers = replace(NETWORK, pull_seconds_per_byte=0.5)
    (axes,) = drawn(STOCK, network=servers).axes
    assert axes.get_yticklabels()[-1].get_text() == "push and\npull"
    together = sum(widths(axes, "#7d6bb0")) + sum(widths(axes, "#b3a8d6"))
    assert together == pytest.approx(2 * 6 * 1.5)


def test_labels_stand_where_there_is_room() -> None:
    names = ("short", "also_long_and_never_shown" * 3)
    costs = StepCosts(
        tuple(UnitCost(f"F:{name}", "F", 1.0) for name in names),
        (UnitCost("dX:thin", "dX", 0.001),),
        (),
    )
    figure = drawn(Plan("baseline", None, ()), network=Network("local", 1), costs=costs)
    assert [text for text in shown(figure) if "step" not in text] == ["short", "short"]


def test_files(tmp_path: Path) -> None:
    files = [tmp_path / "timeline.png", tmp_path / "timeline.svg"]
    write(drawn(STOCK, LATER, title="three layers on two workers"), files)
    with Image.open(files[0]) as image:
        image.load()
        assert image.format == "PNG"
        assert image.width > 1000
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 10
    text = "".join(ElementTree.parse(files[1]).getroot().itertext())
    for part in (
        "three layers on two workers",
        "baseline",
        "later",
        "dW, moved later",
        "time (ms)",
    ):
        assert part in text


def test_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write(drawn(STOCK), [tmp_path / "nowhere" / "timeline.png"])
