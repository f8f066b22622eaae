"""Draws the memory of charts over time.

::

    bytes          _____
              ____|     |___        ___ limit ___
         ____|              |_____
        |___________________________ seconds
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from ooodist.report.chart import Chart
from ooodist.report.picture import stacked, write_legend
from ooodist.report.tables import readable_bytes

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))
_LIMIT = "#d62f1f"
_PANEL_INCHES = 1.7
_HEADROOM = 1.08
_FAR = 3  # times the peak: a limit above that would squash the curves


def draw_memory(charts: Sequence[Chart], limit: int | None, title: str) -> Figure:
    """Draws the curves of charts below each other, with shared axes of time and bytes.

    Args:
        charts: the charts, all with curves of the same names.
        limit: bytes that may be in use; None: no limit.
        title: the title of the figure.
    """
    figure, all_axes = stacked([chart.title for chart in charts], title, _PANEL_INCHES)
    points = [point for chart in charts for curve in chart.curves.values() for point in curve]
    most = max(num_bytes for _, num_bytes in points)
    if limit is not None and limit <= _FAR * most:
        most = max(most, limit)
    divisor, unit = next((each for each in _UNITS if most >= each[0]), _UNITS[-1])
    colors = matplotlib.colormaps["viridis"]
    for axes, chart in zip(all_axes, charts, strict=True):
        for number, (name, curve) in enumerate(chart.curves.items()):
            axes.plot(
                [seconds * 1e3 for seconds, _ in curve],
                [num_bytes / divisor for _, num_bytes in curve],
                drawstyle="steps-post",
                color=colors(0.92 * number / max(1, len(chart.curves) - 1)),
                linewidth=1.3,
                label=name.removeprefix("memory of "),
            )
        if limit is not None:
            # A limit that is far above all curves appears only in the legend.
            label = f"limit: {readable_bytes(limit)}"
            axes.axhline(limit / divisor, color=_LIMIT, linewidth=1.5, linestyle="--", label=label)
        axes.set_ylabel(unit)
        axes.set_ylim(0, max(most / divisor, 1e-9) * _HEADROOM)
    all_axes[-1].set_xlim(0, max(seconds for seconds, _ in points) * 1e3)
    write_legend(figure, all_axes[0].get_legend_handles_labels()[0], ncols=9)
    return figure
