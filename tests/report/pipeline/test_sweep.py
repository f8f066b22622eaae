"""The picture of throughput over micro-batches."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from ooodist.planner.pipeline.plan import AUTO, NAMES
from ooodist.report.picture import write
from ooodist.report.pipeline.outcomes import Comparison
from ooodist.report.pipeline.sweep import draw_sweep
from tests.report.pipeline_examples import compare, equal_layers

COSTS = equal_layers(8, 1e-3, kept=10, limit=200)


def sweep(
    ranks: list[int], microbatches: list[int], chunks: list[int | None], *names: str
) -> list[Comparison]:
    return [
        compare(COSTS, p, m, *names, chunks=v) for p in ranks for m in microbatches for v in chunks
    ]


def points(figure: Figure, axes: int = 0) -> dict[str, dict[float, float]]:
    """Of each line that has a name."""
    return {
        str(line.get_label()): {
            float(x): float(y) for x, y in zip(*line.get_data(), strict=True) if not math.isnan(y)
        }
        for line in figure.axes[axes].lines
    }


def test_lines_go_through_the_predictions() -> None:
    figure = draw_sweep(sweep([2, 4], [8, 2, 4], [None], "1f1b", "zb_h1"), "title")
    assert len(figure.axes) == 2
    for axes, ranks in enumerate((2, 4)):
        shown = points(figure, axes)
        assert list(shown) == ["1f1b", "zb_h1"]
        assert list(shown["1f1b"]) == [2, 4, 8]
        for microbatches, throughput in shown["1f1b"].items():
            seconds = 1e-3 * 8 / ranks * 3 * (microbatches + ranks - 1)
            assert math.isclose(throughput, microbatches / seconds, rel_tol=1e-9)
    assert figure.axes[0].get_ylabel() == "micro-batches/s"
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["2", "4", "8"]
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ranks: 2", "ranks: 4"]


def test_what_does_not_fit_is_left_out() -> None:
    figure = draw_sweep(sweep([4], [8, 32], [None], "gpipe", "1f1b"), "")
    assert {name: list(line) for name, line in points(figure).items()} == {
        "gpipe": [8],  # which keeps the two layers of each of 32 micro-batches
        "1f1b": [8, 32],
    }


def test_axes_for_each_number_of_replicas() -> None:
    those = [compare(COSTS, 2, 4, "1f1b", replicas=data) for data in (1, 4)]
    figure = draw_sweep(those, "")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["ranks: 2", "ranks: 2, replicas: 4"]
    one, four = (points(figure, axes)["1f1b"][4] for axes in (0, 1))
    assert math.isclose(four, 4 * one)  # over links that cost nothing


def test_a_line_for_each_number_of_chunks() -> None:
    figure = draw_sweep(sweep([2], [4, 8], [1, 2], "1f1b", "interleaved"), "")
    names = ["1f1b, v = 1", "interleaved, v = 1", "interleaved, v = 2"]
    assert list(points(figure)) == names
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    _, one, two = figure.axes[0].lines
    assert to_hex(one.get_color()) == to_hex(two.get_color())
    assert one.get_linestyle() != two.get_linestyle()


def test_schedules_can_be_told_apart_without_colors(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("0F0,0B0\n1F0,1B0\n")
    names = (*NAMES, AUTO, str(file))
    figure = draw_sweep([compare(equal_layers(4), 2, 1, *names)], "")
    lines = figure.axes[0].lines
    assert len({line.get_marker() for line in lines}) == len(lines) == len(names)
    assert len({to_hex(line.get_color()) for line in lines}) == len(names)


def test_the_legend_is_not_cut_off_and_not_on_the_title() -> None:
    chunks: list[int | None] = [1, 2, 3, 4]
    names = ("gpipe", "interleaved", "modulo", "push")
    many = [compare(equal_layers(8), 2, 2, *names, chunks=v) for v in chunks]
    figure = draw_sweep([*many, compare(equal_layers(8), 2, 2, *NAMES)], "a long title " * 8)
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert len(legend.get_texts()) == 4 * 4 + len(NAMES)
    assert 0 < box.x0 < box.x1 < figure.bbox.x1
    assert 0 < box.y0 < box.y1 < figure.bbox.y1
    (title,) = [text for text in figure.texts if text.get_text() == figure.get_suptitle()]
    assert not box.overlaps(title.get_window_extent())


def test_files(tmp_path: Path) -> None:
    files = [tmp_path / "throughput.png", tmp_path / "throughput.svg"]
    write(draw_sweep(sweep([2], [4, 8], [None], "1f1b"), "eight layers"), files)
    with Image.open(files[0]) as image:
        image.load()
        assert image.format == "PNG"
    text = "".join(ElementTree.parse(files[1]).getroot().itertext())
    for part in ("eight layers", "1f1b", "micro-batches of a step"):
        assert part in text
