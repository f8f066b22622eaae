"""Draws bars with labels on a time axis."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from ooodist.profiler.recording.intervals import (
    Interval,
    common_intervals,
    merge_intervals,
    total_length,
)

_LABEL_POINTS = 7.0
_LETTER_WIDTH, _LINE_HEIGHT = 0.62, 1.3  # approximate, relative to the font size
_POINTS_PER_LANE = 47  # approximate, of a lane of height 1
_THIN_POINTS = 2.0  # bars thinner than this on average have no edges


class Bars:
    """Draws bars on an axis in milliseconds; a lane is a lower edge and a height.

    Args:
        axes: axes to draw on.
        seconds: length of the time axis, from 0; what is later is cut off.
        points: its approximate width in units of 1/72 inch.
    """

    def __init__(self, axes: Axes, seconds: float, points: float) -> None:
        self._axes = axes
        self._seconds = seconds
        self._points_per_second = points / seconds

    def add(
        self,
        lane: tuple[float, float],
        color: str,
        spans: Sequence[Interval],
        *,
        edges: bool = True,
    ) -> None:
        """Draws a bar for each span; thin ones get no edges, which would hide them."""
        shown = common_intervals(sorted(spans), [(0.0, self._seconds)])
        if not shown:
            return
        points = total_length(shown) / len(shown) * self._points_per_second
        edges = edges and points > _THIN_POINTS
        shown = shown if edges else merge_intervals(shown)
        self._axes.broken_barh(
            [(start * 1e3, (end - start) * 1e3) for start, end in shown],
            lane,
            facecolors=color,
            edgecolors="white",
            linewidth=0.5 if edges else 0.0,
        )

    def label(
        self,
        lane: tuple[float, float],
        spans: Sequence[Interval],
        labels: Sequence[str],
        color: str,
    ) -> None:
        """Writes each label on its bar if there is room for it, upright if need be."""
        low, height = lane
        for (start, end), label in zip(spans, labels, strict=True):
            end = min(end, self._seconds)
            width = (end - start) * self._points_per_second
            length = (len(label) * _LETTER_WIDTH + 1) * _LABEL_POINTS
            lies, stands = length < width, length < height * _POINTS_PER_LANE
            if lies or (stands and width > _LINE_HEIGHT * _LABEL_POINTS):
                self._axes.text(
                    (start + end) / 2 * 1e3,
                    low + height / 2,
                    label,
                    fontsize=_LABEL_POINTS,
                    color=color,
                    rotation=0 if lies else 90,
                    horizontalalignment="center",
                    verticalalignment="center",
                )
