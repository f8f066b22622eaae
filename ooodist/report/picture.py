"""Draws charts one below the other, with one axis of time.

::

    baseline      |--- step 1 --------------------------|--- step 2 ----------...
    compute    | F1 F2 F3 | dX3 dW3 dX2 dW2 dX1 dW1 | / waits / | F1 F2 F3 | ...
    exchange                   |== dW3 ==|== dW2 ==|###########|             ...

    zb_h1
    rank 0     | 0 1 2 3       0   0   1   1  ...
    rank 1     |   0 1 2   0   0   1   1 ...
"""

from __future__ import annotations

import functools
import math
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ooodist.profiler.recording.intervals import common_intervals, merge_intervals, total_length
from ooodist.report.chart import STYLES, Bar, Chart, styles_of

_BRIGHT = 0.48  # of colors on which labels are black; 1 is white
_THIN_POINTS = 2.0  # bars thinner than this on average have no edges, which would hide them
_LABEL_POINTS = (7.0, 5.5)  # the first size that fits is used
_TITLE_POINTS = 12.0
_LETTER_WIDTH, _LINE_HEIGHT = 0.62, 1.3  # as shares of the font size, approximately
_LAST_MARK = 0.96  # of the shown time; there is no room for a text after that

_WIDTH = 12.0  # inches
_LEAST_LANE_INCHES = 0.12
_LANES_INCHES = 2.4  # height of all lanes of a chart, as far as the bounds of a lane allow
_TITLE_INCHES = 0.42  # height of a chart's title
_AXES_POINTS = 0.92 * _WIDTH * 72  # width of the time axis
_TICK_INCHES = 0.12  # height of a lane's title
_FILLED = 0.9  # share of a lane's height that bars fill
_MARKS_INCHES = 0.2  # height of the texts of marks

_Place = Literal["outside lower center", "outside right center"]  # of a legend


def draw(charts: Sequence[Chart], title: str, seconds: float | None = None) -> Figure:
    """Draws the charts; time is in milliseconds.

    Args:
        charts: at least one.
        title: the title of the figure.
        seconds: length of the time axis, from 0; what is later is cut off. None: all is shown.
    """
    if seconds is None:
        seconds = max(chart.seconds for chart in charts) * 1.002  # room for a mark at the end
    number = max(len(chart.lanes) for chart in charts)
    lane_inches = max(_LANES_INCHES / number, _LEAST_LANE_INCHES)
    lane_inches = min(lane_inches, *(chart.lane_inches for chart in charts))
    panel_inches = number * lane_inches + _TITLE_INCHES
    if any(text for chart in charts for _, text in chart.marks):
        panel_inches += _MARKS_INCHES
    figure, all_axes = stacked([chart.title for chart in charts], title, panel_inches)
    for axes, chart in zip(all_axes, charts, strict=True):
        _Panel(axes, seconds, lane_inches).draw(chart)
    all_axes[-1].set_xlim(0, seconds * 1e3)
    bars = [bar for chart in charts for bars in chart.by_lane().values() for bar in bars]
    styles = styles_of([*bars, *(bar for chart in charts for bar in chart.background)])
    handles = [Patch(facecolor=style.color, label=style.legend) for style in styles]
    darkest = max((bar.darkness for bar in bars), default=0.0)
    if darkest:
        dark = _shade(STYLES["F"].color, darkest)
        handles.append(Patch(facecolor=dark, label="darker: a later stage of the rank"))
    write_legend(figure, handles, ncols=6)
    return figure


def stacked(titles: Sequence[str], title: str, inches: float) -> tuple[Figure, list[Axes]]:
    """A figure with axes below each other, which share the axis of time, and their titles.

    Args:
        titles: of the axes, from the top.
        title: of the figure.
        inches: the height of each of the axes with its title.
    """
    # Not pyplot's figure, as pyplot keeps all figures of a process.
    figure = Figure(figsize=(_WIDTH, len(titles) * inches + 1.1), layout="constrained")
    write_title(figure, title)
    all_axes = list(figure.subplots(len(titles), sharex=True, squeeze=False)[:, 0])
    for axes, each in zip(all_axes, titles, strict=True):
        axes.set_title(each, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[-1].set_xlabel("time (ms)")
    return figure, all_axes


def write_title(figure: Figure, title: str) -> None:
    """Writes the title above all axes, in as many lines as it needs."""
    letters = int(figure.get_figwidth() * 72 / (_TITLE_POINTS * _LETTER_WIDTH))
    figure.suptitle(
        textwrap.fill(title, letters),
        fontsize=_TITLE_POINTS,
        fontweight="bold",
        x=0.01,
        horizontalalignment="left",
    )


def write_legend(
    figure: Figure,
    handles: Sequence[Artist],
    place: _Place = "outside lower center",
    ncols: int = 1,
) -> None:
    """Writes a legend outside of the axes."""
    figure.legend(handles=handles, loc=place, ncols=ncols, frameon=False, fontsize=9)


def write(figure: Figure, files: Iterable[Path]) -> None:
    """Writes a figure in the formats of the files' suffixes. Raises OSError."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not again for each file
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        for file in files:
            figure.savefig(file, dpi=160)


@dataclass(frozen=True)
class _Panel:
    """Where a chart is drawn: each lane is a unit high, and the last one is at 0.

    Attributes:
        axes: for times in milliseconds.
        seconds: what is later is cut off.
        lane_inches: the height of a lane.
    """

    axes: Axes
    seconds: float
    lane_inches: float

    def draw(self, chart: Chart) -> None:
        """Draws all of the chart."""
        lanes = chart.by_lane()
        number = len(lanes)
        size = self._label_size([bar for bars in lanes.values() for bar in bars])
        for low, (lane, bars) in zip(range(number - 1, -1, -1), lanes.items(), strict=True):
            background = [bar for bar in chart.background if bar.lane == lane]
            self._draw_lane(low, background, edges=False)
            self._draw_lane(low, bars, edges=True)
            for bar in bars:
                self._write_label(low, bar, size)
        top = number + _MARKS_INCHES / self.lane_inches
        for seconds, text in chart.marks:
            self.axes.axvline(seconds * 1e3, color="black", linewidth=1)
            if text and seconds < _LAST_MARK * self.seconds:
                self.axes.text(seconds * 1e3, top, text, fontsize=9, verticalalignment="top")
        self.axes.set_ylim(-0.1, top if any(text for _, text in chart.marks) else number)
        shown = range(0, number, math.ceil(_TICK_INCHES / self.lane_inches))
        titles = list(chart.lanes.values())
        self.axes.set_yticks(
            [number - 1 - place + _FILLED / 2 for place in shown],
            [titles[place] for place in shown],
            fontsize=8,
        )
        self.axes.tick_params(axis="y", length=0)
        self.axes.spines["left"].set_visible(False)

    def _draw_lane(self, low: int, bars: Sequence[Bar], *, edges: bool) -> None:
        groups: dict[tuple[int, str, tuple[int, int]], list[Bar]] = {}
        for bar in bars:
            groups.setdefault((_ORDER[bar.kind], _fill(bar), bar.row), []).append(bar)
        for (_, color, row), group in sorted(groups.items()):
            spans = sorted((bar.start, bar.end) for bar in group)
            shown = common_intervals(spans, [(0.0, self.seconds)])
            if not shown:
                continue
            is_thick = self._points(total_length(shown) / len(shown)) > _THIN_POINTS
            if not (edges and is_thick):
                shown = merge_intervals(shown)
            self.axes.broken_barh(
                [(start * 1e3, (end - start) * 1e3) for start, end in shown],
                _low_and_height(low, row),
                facecolors=color,
                edgecolors="white",
                linewidth=0.5 if edges and is_thick else 0.0,
            )

    def _label_size(self, bars: Sequence[Bar]) -> float:
        """The font size, the same for all bars: if possible, the median bar fits any label."""
        labeled = [bar for bar in bars if bar.labels and bar.end > bar.start]
        if labeled:
            points = self._points(statistics.median(bar.end - bar.start for bar in labeled))
            longest = max((bar.labels[0] for bar in labeled), key=len)
            for size in _LABEL_POINTS:
                is_low_enough = _LINE_HEIGHT * size < self._points_high(labeled[0])
                if _length(longest, size) < points and is_low_enough:
                    return size
        return _LABEL_POINTS[0]

    def _write_label(self, low: int, bar: Bar, size: float) -> None:
        """Writes the first label on the bar if there is room for it, upright if need be."""
        text, end = "".join(bar.labels[:1]), min(bar.end, self.seconds)
        width, height = self._points(end - bar.start), self._points_high(bar)
        length, line = _length(text, size), _LINE_HEIGHT * size
        lies, stands = length < width and line < height, length < height and line < width
        if text and (lies or stands):
            bottom, high = _low_and_height(low, bar.row)
            label = self.axes.text(
                (bar.start + end) / 2 * 1e3,
                bottom + high / 2,
                text,
                fontsize=size,
                color="black" if _brightness(_fill(bar)) > _BRIGHT else "white",
                rotation=0 if lies else 90,
                horizontalalignment="center",
                verticalalignment="center_baseline" if lies else "center",
            )
            label.set_in_layout(False)  # it lies within the axes, and there may be many

    def _points(self, seconds: float) -> float:
        return seconds / self.seconds * _AXES_POINTS

    def _points_high(self, bar: Bar) -> float:
        _, height = _low_and_height(0, bar.row)
        return height * self.lane_inches * 72


def _low_and_height(low: float, row: tuple[int, int]) -> tuple[float, float]:
    """The edges of a row of the lane at ``low``, in lanes."""
    place, number = row
    height = _FILLED / number
    return low + height * (number - 1 - place), height


def _length(text: str, size: float) -> float:
    """The length of a text with a margin, in points, approximately."""
    return (len(text) + 1) * _LETTER_WIDTH * size


def _fill(bar: Bar) -> str:
    return _shade(STYLES[bar.kind].color, bar.darkness)


@functools.cache
def _shade(color: str, darkness: float) -> str:
    red, green, blue = to_rgb(color)
    return to_hex((red * (1 - darkness), green * (1 - darkness), blue * (1 - darkness)))


def _brightness(color: str) -> float:
    red, green, blue = to_rgb(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue  # as ITU-R BT.601 has it


_ORDER = {kind: place for place, kind in enumerate(STYLES)}
