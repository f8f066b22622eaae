"""The picture of pipeline schedules: what is drawn, and that its files are whole."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.layer_costs import Link
from ooodist.report.chart import STYLES, Chart
from ooodist.report.picture import draw, write
from ooodist.report.pipeline.charts import pipeline_chart
from tests.planner.pipelines import pipelines
from tests.report.pipeline_examples import equal_layers, simulate, simulated_of
from tests.thorough import few

F, B, W, UPDATE = "#56b4e9", "#e69f00", "#8fd0ae", "#777777"
EXCHANGE = "#cc79a7"


def panel(name: str, *, layers: int = 4, ranks: int = 4, microbatches: int = 8) -> Chart:
    return pipeline_chart(simulate(equal_layers(layers), ranks, microbatches, name), name, name)


def spans(axes: Axes, lane: int | None = None) -> dict[str, list[tuple[float, float]]]:
    """Of the bars of each color (on one lane, counted from below), in seconds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for collection in axes.collections:
        assert isinstance(collection, PolyCollection)
        color = to_hex(collection.get_facecolor()[0])
        for path in collection.get_paths():
            left, low = path.vertices.min(axis=0)
            if lane in (None, int(low)):
                right = path.vertices[:, 0].max()
                found.setdefault(color, []).append((left / 1e3, right / 1e3))
    return found


def total(spans_: list[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans_)


def shown(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_colors_are_those_of_data_parallel_pictures() -> None:
    (axes,) = draw([panel("zb_h1")], "").axes
    assert set(spans(axes)) == {F, B, W}
    assert [STYLES[kind].color for kind in ("F", "dX", "dW")] == [F, B, W]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
def test_bars_have_the_lengths_of_the_simulation(name: str) -> None:
    (axes,) = draw([panel(name)], "").axes
    for lane in range(4):
        found = spans(axes, lane)
        assert {color: total(bars) for color, bars in found.items()} == pytest.approx(
            {F: 8, B: 8, W: 8}
        )


@few(20)
@given(pipelines())
def test_busy_and_idle_are_the_makespan(pipeline: tuple[Schedule, PipelineCosts]) -> None:
    simulated = simulated_of(pipeline)
    assume(simulated.seconds > 0)
    timeline = simulated.timeline
    (axes,) = draw([pipeline_chart(simulated, "")], "").axes
    for rank, (busy, update) in enumerate(zip(timeline.busy, timeline.updates, strict=True)):
        each = 2 if any(timeline.exchanges) else 1  # lanes of a rank
        found = spans(axes, each * (len(timeline.runs) - rank) - 1)
        edges = sorted(edge for bars in found.values() for span in bars for edge in span)
        idle = sum(
            end - start
            for start, end in zip(
                [0.0, *edges[1::2]], [*edges[::2], simulated.seconds], strict=True
            )
        )
        drawn = sum(map(total, found.values()))
        assert drawn == pytest.approx(busy + update)
        assert drawn + idle == pytest.approx(simulated.seconds)
        if any(timeline.exchanges):
            moved = spans(axes, 2 * (len(timeline.runs) - rank) - 2)
            assert set(moved) <= {EXCHANGE}
            edges = [edge for span in sorted(moved.get(EXCHANGE, [])) for edge in span]
            assert edges == pytest.approx(
                [edge for each in timeline.exchanges[rank] for edge in (each.start, each.end)]
            )


def test_rank_0_is_on_top_and_has_its_micro_batches() -> None:
    figure = draw([panel("1f1b")], "")
    (axes,) = figure.axes
    labels = {text.get_text(): text.get_position()[1] for text in axes.get_yticklabels()}
    ticks = dict(
        zip([t.get_text() for t in axes.get_yticklabels()], axes.get_yticks(), strict=True)
    )
    assert list(ticks) == list(labels) == [f"rank {rank}" for rank in range(4)]
    assert ticks["rank 0"] > ticks["rank 3"]
    assert min(spans(axes, 3)[F]) == (0, 1)
    assert sorted(map(int, shown(figure))) == sorted([*range(8)] * 3 * 4)  # F, B, W on 4 ranks


def test_later_stages_of_a_rank_are_darker() -> None:
    (axes,) = draw([panel("interleaved", layers=8)], "").axes
    found = spans(axes)
    assert len(found) == 6
    for light in (F, B, W):
        assert total(found[light]) == pytest.approx(4 * 8)
        (dark,) = [
            color
            for color, bars in found.items()
            if color != light
            and _hue(color) == pytest.approx(_hue(light), abs=0.02)
            and total(bars) == pytest.approx(4 * 8)
        ]
        assert sum(_channels(dark)) < sum(_channels(light))


def _channels(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


def _hue(color: str) -> list[float]:
    channels = _channels(color)
    return [channel / max(channels) for channel in channels]


def test_panels_share_the_axis_of_time() -> None:
    figure = draw([panel("gpipe"), panel("zb_h1")], "four layers")
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim() == (0, pytest.approx(33e3, rel=0.01))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["gpipe", "zb_h1"]
    ends = [axes.lines[0].get_xdata()[0] for axes in figure.axes]
    assert ends == [33e3, 27e3]
    assert below.get_xlabel() == "time (ms)"


def test_numbers_stand_only_where_there_is_room() -> None:
    many = draw([panel("gpipe", microbatches=200)], "")
    assert shown(many) == []
    few, some = draw([panel("gpipe")], ""), draw([panel("gpipe", microbatches=20)], "")
    sizes = [{text.get_fontsize() for text in each.axes[0].texts} for each in (few, some)]
    assert sizes == [{7}, {5.5}]
    low = draw([panel("gpipe", layers=40, ranks=40, microbatches=2)], "")
    assert {text.get_fontsize() for text in low.axes[0].texts} <= {5.5}
    names = [text.get_text() for text in low.axes[0].get_yticklabels()]
    assert names == [f"rank {rank}" for rank in range(40)]


def test_updates_are_in_the_picture_and_in_its_legend() -> None:
    simulated = simulate(equal_layers(2, update=2.0), 2, 3, "1f1b")
    figure = draw([pipeline_chart(simulated, "")], "")
    assert sorted(spans(figure.axes[0])[UPDATE]) == [(9 + 1, 9 + 1 + 2), (12, 14)]
    (legend,) = figure.legends
    assert "update" in [text.get_text() for text in legend.get_texts()]
    (legend,) = draw([panel("1f1b")], "").legends
    assert [text.get_text()[:2] for text in legend.get_texts()] == ["F:", "I:", "W:"]


def test_exchanges_have_a_lane_of_their_own_and_are_in_the_legend() -> None:
    costs = equal_layers(2, link=Link(0.5), replicas=2)
    figure = draw([pipeline_chart(simulate(costs, 2, 3, "zb_h1"), "")], "")
    (axes,) = figure.axes
    ticks = [text.get_text() for text in axes.get_yticklabels()]
    assert ticks == ["rank 0", "exchange", "rank 1", "exchange"]
    (legend,) = figure.legends
    assert "exchange with replicas" in [text.get_text() for text in legend.get_texts()]


def test_a_long_title_has_several_lines_that_are_not_cut_off() -> None:
    title = "a model with a long name on 16 ranks, 128 micro-batches, " * 4
    figure = draw([panel("1f1b")], title)
    FigureCanvasAgg(figure).draw()
    written = figure.get_suptitle()
    assert written.split() == title.split()
    assert "\n" in written
    (text,) = [each for each in figure.texts if each.get_text() == written]
    assert text.get_window_extent().x1 < figure.bbox.width


def test_files(tmp_path: Path) -> None:
    files = [tmp_path / "timeline.png", tmp_path / "timeline.svg"]
    write(draw([panel("1f1b"), panel("zb_v", layers=8)], "layers on four ranks"), files)
    with Image.open(files[0]) as image:
        image.load()
        assert image.format == "PNG"
        assert image.width > 1000
    text = "".join(ElementTree.parse(files[1]).getroot().itertext())
    for part in ("layers on four ranks", "1f1b", "zb_v", "rank 3", "time (ms)", "darker"):
        assert part in text
