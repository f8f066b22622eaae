"""The pictures of elastic training: what is drawn and written, not only that there is a file."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.image import AxesImage
from PIL import Image

from ooodist.elastic.controller import Renewal
from ooodist.elastic.figures import (
    MOST_NAMES,
    MOST_STEPS,
    selection_map,
    write_selection,
)


def renewal(step: int, selected: tuple[int, ...], importance: tuple[float, ...]) -> Renewal:
    return Renewal(step, selected, importance, 0.1, None, True, 0.5)


ITEMS = ["head", "middle", "stem"]
RENEWALS = [
    renewal(0, (0, 1), (1.0, 0.25, 0.0)),
    renewal(200, (0, 2), (0.5, -0.125, 0.75)),
]


def images(axes: Axes) -> dict[str, AxesImage]:
    return {str(image.get_label()): image for image in axes.images}


def test_each_cell_has_its_importance_in_one_of_two_colors() -> None:
    found = images(selection_map(ITEMS, RENEWALS).axes[0])
    selected, others = found["selected"].get_array(), found["not selected"].get_array()
    assert isinstance(selected, np.ma.MaskedArray)
    assert isinstance(others, np.ma.MaskedArray)
    # rows are items, columns are renewals
    assert selected.filled(9).tolist() == [[1.0, 0.5], [0.25, 9], [9, 0.75]]
    assert others.filled(9).tolist() == [[9, 9], [9, -0.125], [0.0, 9]]


def test_what_matters_little_still_shows_whether_it_is_selected() -> None:
    found = images(selection_map(ITEMS, RENEWALS).axes[0])
    colors = {
        name: {to_hex(image.to_rgba(np.array([value]))[0]) for value in np.linspace(-0.2, 1, 50)}
        for name, image in found.items()
    }
    assert not colors["selected"] & colors["not selected"]
    # below zero as zero
    for image in found.values():
        below, zero = image.to_rgba(np.array([-0.2, 0.0]))
        assert below.tolist() == zero.tolist()


def test_rows_and_columns_are_named() -> None:
    figure = selection_map(ITEMS, RENEWALS)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ITEMS
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "200"]
    assert axes.get_xlabel() == "step of the selection"
    assert axes.get_ylabel() == "input  ←  tensors  →  output"
    assert axes.yaxis_inverted()  # the first item, at the output, is at the top
    bars = [other.get_ylabel() for other in figure.axes[1:]]
    assert bars == ["importance, not selected", "importance, selected"]


def test_the_title_says_how_much_is_selected() -> None:
    axes = selection_map(ITEMS, RENEWALS).axes[0]
    assert axes.get_title(loc="left") == "3 items, of which 67% are selected at a time"


@pytest.mark.parametrize("num_items", [1, 40, 500])
@pytest.mark.parametrize("num_renewals", [1, 300])
def test_few_and_many(num_items: int, num_renewals: int, tmp_path: Path) -> None:
    items = [f"item_{number}" for number in range(num_items)]
    renewals = [renewal(10 * n, (0,), (0.5,) * num_items) for n in range(num_renewals)]
    figure = selection_map(items, renewals)
    axes = figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    steps = [label.get_text() for label in axes.get_xticklabels()]
    assert 1 <= len(names) <= MOST_NAMES
    assert 1 <= len(steps) <= MOST_STEPS
    for tick, name in zip(axes.get_yticks(), names, strict=True):
        assert name == f"item_{int(tick)}"
    for tick, step in zip(axes.get_xticks(), steps, strict=True):
        assert step == str(10 * int(tick))
    if num_items == 40:
        assert names == items
    figure.savefig(tmp_path / "picture.png", dpi=40)
    assert max(Image.open(tmp_path / "picture.png").size) < 20 * 40


def test_nothing_matters(tmp_path: Path) -> None:
    written = write_selection(tmp_path, ["head"], [renewal(0, (0,), (0.0,))])
    assert all((tmp_path / name).stat().st_size for name in written)


def test_files(tmp_path: Path) -> None:
    written = write_selection(tmp_path, ITEMS, RENEWALS)
    assert written == ["selection.png", "selection.svg", "selection.csv"]
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(written)
    with Image.open(tmp_path / "selection.png") as picture:
        assert picture.format == "PNG"
    text = (tmp_path / "selection.svg").read_text()
    assert all(name in text for name in ITEMS)
    with (tmp_path / "selection.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["step", "item", "selected", "importance"],
        ["0", "head", "1", "1"],
        ["0", "middle", "1", "0.25"],
        ["0", "stem", "0", "0"],
        ["200", "head", "1", "0.5"],
        ["200", "middle", "0", "-0.125"],
        ["200", "stem", "1", "0.75"],
    ]
