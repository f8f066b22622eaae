"""Memory that the ranks of a pipeline keep over time, as curves and as a figure.

::

    bytes          _____
              ____|     |___        ___ limit ___
         ____|              |_____
        |___________________________ seconds
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ooodist.planner.pipeline.simulate import saved_bytes
from ooodist.report.data_parallel.plan_table import readable_bytes
from ooodist.report.pipeline.figure import Panel, write_title
from ooodist.report.pipeline.outcomes import Simulated

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))
_LIMIT = "#d62f1f"
_INCHES = (12.0, 1.7)  # width, and height of a panel
_HEADROOM = 1.08
_FAR = 3  # times the peak: a limit above that would squash the curves


def memory_curves(simulated: Simulated) -> list[list[tuple[float, int]]]:
    """Finds for each rank points (seconds, bytes kept from then on) over the whole step."""
    costs = simulated.plan.costs
    curves = []
    saved_of = saved_bytes(simulated.plan.schedule, costs)
    for runs, saved in zip(simulated.timeline.runs, saved_of, strict=True):
        curve: list[tuple[float, int]] = []
        for run, during in zip(runs, saved, strict=True):
            begin, end = costs.stages[run.action.stage].saved_bytes(run.action.kind)
            if not curve:
                curve.append((0.0, during - begin))
            curve += [(run.start, during), (run.end, during + end)]
        curve.append((simulated.seconds, curve[-1][1] if curve else 0))
        curves.append(curve)
    return curves


def draw_memory(panels: Sequence[Panel], limit: int | None, title: str) -> Figure:
    """Draws the panels below each other, with shared axes of time and bytes.

    Args:
        panels: the panels; each gets a curve for each rank.
        limit: bytes that a rank may keep; None: no limit.
        title: the title of the figure.
    """
    figure = Figure(figsize=(_INCHES[0], _INCHES[1] * len(panels) + 1.2), layout="constrained")
    write_title(figure, title)
    all_axes = figure.subplots(len(panels), sharex=True, sharey=True, squeeze=False)[:, 0]
    most = max(panel.simulated.peak_bytes for panel in panels)
    if limit is not None and limit <= _FAR * most:
        most = max(most, limit)
    divisor, unit = next((each for each in _UNITS if most >= each[0]), _UNITS[-1])
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_panel(axes, panel, divisor)
        if limit is not None:
            # A limit that is far above all curves appears only in the legend.
            label = f"limit: {readable_bytes(limit)}"
            axes.axhline(limit / divisor, color=_LIMIT, linewidth=1.5, linestyle="--", label=label)
        axes.set_ylabel(unit)
    all_axes[-1].set_xlabel("time (ms)")
    all_axes[-1].set_xlim(0, max(panel.simulated.seconds for panel in panels) * 1e3)
    all_axes[-1].set_ylim(0, max(most / divisor, 1e-9) * _HEADROOM)
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=9, frameon=False, fontsize=9)
    return figure


def _draw_panel(axes: Axes, panel: Panel, divisor: int) -> None:
    curves = memory_curves(panel.simulated)
    colors = matplotlib.colormaps["viridis"]
    for rank, curve in enumerate(curves):
        axes.plot(
            [seconds * 1e3 for seconds, _ in curve],
            [num_bytes / divisor for _, num_bytes in curve],
            drawstyle="steps-post",
            color=colors(0.92 * rank / max(1, len(curves) - 1)),
            linewidth=1.3,
            label=f"rank {rank}",
        )
    axes.set_title(panel.title, fontsize=10, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
