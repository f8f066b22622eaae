"""Draws pipeline schedules: what each rank computes when, and where it waits.

    1f1b     rank 0 | 0 1 2 3       0   0   1   1  ...
             rank 1 |   0 1 2   0   0   1   1 ...
    zb_h1    the same below it, with the same time axis

If there are replicas, each rank's exchanges with them are on a lane below it.
The number on a bar is its micro-batch. If a rank has several stages, they range from light (the
first) to dark (the last).
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ooodist.planner.pipeline.actions import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from ooodist.report.bars import Bars
from ooodist.report.pipeline.bars import EXCHANGE, UPDATE, Bar, lanes
from ooodist.report.pipeline.outcomes import Simulated

# Safe for color-blind readers, as in ooodist.report.data_parallel.figure.
_COLORS = {
    FORWARD: "#56b4e9",
    INPUT_GRADIENT: "#e69f00",
    WEIGHT_GRADIENT: "#8fd0ae",
    UPDATE: "#777777",
    EXCHANGE: "#cc79a7",
}
_NAMES = {
    FORWARD: "F: forward",
    INPUT_GRADIENT: "I: input gradient",
    WEIGHT_GRADIENT: "W: weight gradient",
    UPDATE: "update",
    EXCHANGE: "exchange with replicas",
}
_DARKEST = 0.4  # darkness of the last of several stages; 1 is black
_WHITE_TEXT = 0.3  # numbers on darker bars are white
_LABEL_POINTS = (7.0, 5.5)  # the first size that fits is used
_TITLE_POINTS = 12.0
_LETTER_WIDTH, _LINE_HEIGHT = 0.62, 1.3  # as shares of the font size, approximately

_WIDTH = 12.0  # inches
_LANE_INCHES = (0.12, 0.26)  # smallest and largest height of a lane
_LANES_INCHES = 2.4  # height of all lanes of a panel, as far as those bounds allow
_TITLE_INCHES = 0.42  # height of a panel's title
_AXES_POINTS = 0.93 * _WIDTH * 72  # width of the time axis
_TICK_INCHES = 0.12  # height of a rank's name
_FILLED = 0.9  # share of a lane's height that bars fill


@dataclass(frozen=True)
class Panel:
    """A panel that shows one schedule.

    Attributes:
        title: the text above it.
        simulated: the plan and step that it shows.
    """

    title: str
    simulated: Simulated


def draw(panels: Sequence[Panel], title: str) -> Figure:
    """Draws the panels below each other, with one time axis in milliseconds.

    Args:
        panels: the panels, all with the same number of ranks.
        title: the title of the figure.
    """
    seconds = max(panel.simulated.seconds for panel in panels)
    number = max(len(lanes(panel.simulated)) for panel in panels)
    lane = min(max(_LANES_INCHES / number, _LANE_INCHES[0]), _LANE_INCHES[1])
    height = len(panels) * (number * lane + _TITLE_INCHES) + 1.1
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    write_title(figure, title)
    all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_panel(axes, panel, seconds, lane)
    all_axes[-1].set_xlabel("time (ms)")
    all_axes[-1].set_xlim(0, seconds * 1.002e3)  # leaves room for the line at the end
    figure.legend(
        handles=_legend(panels), loc="outside lower center", ncols=6, frameon=False, fontsize=9
    )
    return figure


def write_title(figure: Figure, title: str) -> None:
    """Writes the title above all axes, in as many lines as it needs."""
    letters = int(figure.get_figwidth() * 72 / (_TITLE_POINTS * _LETTER_WIDTH))
    lines = textwrap.fill(title, letters)
    figure.suptitle(
        lines, fontsize=_TITLE_POINTS, fontweight="bold", x=0.01, horizontalalignment="left"
    )


def _draw_panel(axes: Axes, panel: Panel, seconds: float, lane_inches: float) -> None:
    simulated = panel.simulated
    drawn = Bars(axes, seconds, _AXES_POINTS)
    rows = lanes(simulated)
    size = _label_size([bar for row in rows for bar in row.bars], seconds, lane_inches)
    for place, row in enumerate(rows):
        low = len(rows) - 1 - place
        for (kind, dark), group in _groups(row.bars, simulated).items():
            spans = [(bar.start, bar.end) for bar in group]
            drawn.add((low, _FILLED), _shade(_COLORS[kind], dark), spans)
            if size is not None:
                for bar in group:
                    color = "white" if dark > _WHITE_TEXT else "black"
                    _write_number(axes, bar, low, size, color, seconds)
    axes.axvline(simulated.seconds * 1e3, color="black", linewidth=1)
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.set_ylim(-0.1, len(rows))
    shown = range(0, len(rows), math.ceil(_TICK_INCHES / lane_inches))
    axes.set_yticks(
        [len(rows) - 1 - place + _FILLED / 2 for place in shown],
        [rows[place].title for place in shown],
        fontsize=8,
    )
    axes.tick_params(axis="y", length=0)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)


def _label_size(all_bars: Sequence[Bar], seconds: float, lane_inches: float) -> float | None:
    """The font size in points that fits the median bar; None if none does."""
    shown = [bar for bar in all_bars if bar.action is not None and bar.end > bar.start]
    if not shown:
        return None
    points = statistics.median(bar.end - bar.start for bar in shown) / seconds * _AXES_POINTS
    letters = max(len(_number(bar)) for bar in shown)
    for size in _LABEL_POINTS:
        fits = (letters + 1) * _LETTER_WIDTH * size < points
        if fits and _LINE_HEIGHT * size < lane_inches * _FILLED * 72:
            return size
    return None


def _write_number(
    axes: Axes, bar: Bar, low: float, size: float, color: str, seconds: float
) -> None:
    """Writes the micro-batch on the bar if it fits."""
    text = _number(bar)
    if len(text) * _LETTER_WIDTH * size > (bar.end - bar.start) / seconds * _AXES_POINTS:
        return
    number = axes.text(
        (bar.start + bar.end) / 2 * 1e3,
        low + _FILLED / 2,
        text,
        fontsize=size,
        color=color,
        horizontalalignment="center",
        verticalalignment="center_baseline",
    )
    number.set_in_layout(False)  # it lies within the axes, and there may be many


def _number(bar: Bar) -> str:
    return "" if bar.action is None else str(bar.action.microbatch)


def _groups(lane: Sequence[Bar], simulated: Simulated) -> dict[tuple[str, float], list[Bar]]:
    """Groups the bars that take time by kind and darkness."""
    rank_of = simulated.plan.schedule.rank_of
    groups: dict[tuple[str, float], list[Bar]] = {}
    for bar in lane:
        if bar.end > bar.start:
            dark = 0.0
            if bar.action is not None and simulated.chunks > 1:
                stage = bar.action.stage
                before = rank_of[:stage].count(rank_of[stage])
                dark = _DARKEST * before / (simulated.chunks - 1)
            groups.setdefault((bar.kind, dark), []).append(bar)
    return groups


def _shade(color: str, dark: float) -> str:
    red, green, blue = to_rgb(color)
    return to_hex((red * (1 - dark), green * (1 - dark), blue * (1 - dark)))


def _legend(panels: Sequence[Panel]) -> list[Patch]:
    timelines = [panel.simulated.timeline for panel in panels]
    shown = {
        UPDATE: any(any(timeline.updates) for timeline in timelines),
        EXCHANGE: any(any(timeline.exchanges) for timeline in timelines),
    }
    kinds = [kind for kind in _COLORS if shown.get(kind, True)]
    patches = [Patch(facecolor=_COLORS[kind], label=_NAMES[kind]) for kind in kinds]
    if any(panel.simulated.chunks > 1 for panel in panels):
        dark = _shade(_COLORS[FORWARD], _DARKEST)
        patches.append(Patch(facecolor=dark, label="darker: a later stage of the rank"))
    return patches
