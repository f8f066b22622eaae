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
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.report.data_parallel import figure
from ooodist.report.data_parallel.figure import Panel, deferred_units, draw, write
from tests.planner.chains import chain_costs, each_alone

COSTS = chain_costs([1, 2, 3], update=0.5)
NETWORK = Network("horovod", 2, seconds_per_byte=1.0)
STOCK = Plan("baseline", None, each_alone("w3", "w2", "w1"))
LATER = Plan("later", ("W3", "X3", "X2", "W1", "W2"), each_alone("w3", "w1", "w2"))
F, DX, DW, MOVED, EXPOSED = "#56b4e9", "#e69f00", "#8fd0ae", "#00714f", "#d62f1f"


def panel(plan: Plan, network: Network = NETWORK, costs: StepCosts = COSTS) -> Panel:
    simulation = Simulator(costs, network).run(plan)
    return Panel(plan.name, simulation, network, deferred_units(costs.backward, plan.order))


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
    (axes,) = draw([panel(STOCK)], "title").axes
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
    above, below = draw([panel(STOCK), panel(LATER)], "title").axes
    assert widths(above, MOVED) == []
    assert sum(widths(below, MOVED)) == pytest.approx(2)


def test_the_legend_has_the_words_of_the_glossary() -> None:
    names = [name for name, _ in figure._legend([])]
    assert "dX: input gradient" in names
    assert not [name for name in names if "launch" in name]


def test_steps_are_numbered_to_the_end_of_the_first_panel() -> None:
    figure = draw([panel(STOCK), panel(replace(LATER, steps_per_execution=3))], "title")
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
    carrying = panel(Plan("all", LATER.order, each_alone(*names), carried=names))
    assert [span.step for span in carrying.simulation.exchanges] == [-1, -1, -1]
    (axes,) = draw([carrying], "title").axes
    assert sum(widths(axes, EXPOSED)) == pytest.approx(2 * (1 + 0.5 + 1.5))


def test_pushes_stand_above_pulls() -> None:
    servers = replace(NETWORK, pull_seconds_per_byte=0.5)
    (axes,) = draw([panel(STOCK, servers)], "title").axes
    assert axes.get_yticklabels()[0].get_text() == "push and\npull"
    together = sum(widths(axes, "#7d6bb0")) + sum(widths(axes, "#b3a8d6"))
    assert together == pytest.approx(2 * 6 * 1.5)


def test_labels_stand_where_there_is_room() -> None:
    names = ("short", "also_long_and_never_shown" * 3)
    costs = StepCosts(
        tuple(UnitCost(f"F:{name}", "F", 1.0) for name in names),
        (UnitCost("dX:thin", "dX", 0.001),),
        (),
    )
    figure = draw([panel(Plan("baseline", None, ()), Network("local", 1), costs)], "title")
    assert [text for text in shown(figure) if "step" not in text] == ["short", "short"]


def test_files(tmp_path: Path) -> None:
    files = [tmp_path / "timeline.png", tmp_path / "timeline.svg"]
    write(draw([panel(STOCK), panel(LATER)], "three layers on two workers"), files)
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
        write(draw([panel(STOCK)], ""), [tmp_path / "nowhere" / "timeline.png"])
