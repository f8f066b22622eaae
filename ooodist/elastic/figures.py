"""The figure of elastic training: importance and selection over time.

predictions/kernel   | ## ## ## ##        one column per renewal of the selection
block_2/kernel       | ## :: ## ##        ##: selected    ::: not selected
block_1/kernel       | :: :: :: ##        darker: more important
                       0  100 200 300
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from ooodist.elastic.controller import Renewal
from ooodist.report.picture import write

MOST_NAMES = 40  # of items; if there are more, every n-th has its name
MOST_STEPS = 16  # number of steps written below the columns
# Importance spans decades, and zero must still show whether the item is selected: square roots
# make room for small values, and the two color ranges are disjoint.
EXPONENT = 0.5
SELECTED = LinearSegmentedColormap.from_list("selected", ["#fee6a8", "#e69f00", "#7a2b00"])
NOT_SELECTED = LinearSegmentedColormap.from_list("not selected", ["#ffffff", "#8c8c8c"])


def selection_map(items: Sequence[str], renewals: Sequence[Renewal]) -> Figure:
    """Draws the importance of each item at each renewal, and whether it was selected.

    Args:
        items: names, from the output to the input, which is shown at the bottom.
        renewals: at least one.
    """
    importance = np.array([renewal.importance for renewal in renewals]).T
    selected = np.array([[n in set(r.selected) for r in renewals] for n in range(len(items))])
    width = 5.5 + min(9.0, 0.3 * len(renewals))
    height = 1.6 + 0.19 * max(6, min(len(items), MOST_NAMES))
    # Not pyplot's figure, as pyplot keeps all figures of a process.
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    norm = PowerNorm(EXPONENT, 0, max(float(importance.max()), 1e-9), clip=True)
    for label, shown, colors in (
        ("not selected", ~selected, NOT_SELECTED),
        ("selected", selected, SELECTED),
    ):
        _draw_cells(axes, np.ma.array(importance, mask=~shown), label, norm, colors)
    _name_rows(axes, items)
    _name_columns(axes, [renewal.step for renewal in renewals])
    axes.set_xlabel("step of the selection")
    axes.set_ylabel("input  ←  tensors  →  output")
    share = selected.sum() / selected.size
    axes.set_title(f"{len(items)} items, of which {share:.0%} are selected at a time", loc="left")
    return figure


def _draw_cells(
    axes: Axes, values: np.ma.MaskedArray, label: str, norm: PowerNorm, colors: Colormap
) -> None:
    """Draws the cells that are not masked, with a color scale of their own."""
    image = axes.imshow(
        values, norm=norm, cmap=colors, aspect="auto", interpolation="nearest", label=label
    )
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(image, ax=axes, fraction=0.035, pad=0.01)
    bar.set_label(f"importance, {label}")


def _name_rows(axes: Axes, items: Sequence[str]) -> None:
    shown = range(0, len(items), math.ceil(len(items) / MOST_NAMES))
    axes.set_yticks(list(shown), [items[number] for number in shown], fontsize=7)


def _name_columns(axes: Axes, steps: Sequence[int]) -> None:
    shown = range(0, len(steps), math.ceil(len(steps) / MOST_STEPS))
    axes.set_xticks(list(shown), [str(steps[number]) for number in shown], fontsize=8)


def write_selection(folder: Path, items: Sequence[str], renewals: Sequence[Renewal]) -> list[str]:
    """Writes selection.png, selection.svg and selection.csv.

    Args:
        folder: must exist.
        items: names, from the output to the input.
        renewals: at least one.

    Returns:
        the names of the files.

    Raises:
        OSError: a file cannot be written.
    """
    pictures = ["selection.png", "selection.svg"]
    write(selection_map(items, renewals), [folder / name for name in pictures])
    with (folder / "selection.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "item", "selected", "importance"])
        for renewal in renewals:
            selected = set(renewal.selected)
            for number, (item, matters) in enumerate(zip(items, renewal.importance, strict=True)):
                rows.writerow([renewal.step, item, int(number in selected), f"{matters:.6g}"])
    return [*pictures, "selection.csv"]
