"""Draws the throughput over the number of micro-batches, with a line for each schedule."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ooodist.planner.pipeline.plan import AUTO, NAMES
from ooodist.report.picture import write_legend, write_title
from ooodist.report.pipeline.outcomes import Comparison

# A color and a marker for each named schedule, and one for all files: the palettes of Okabe and Ito
# and of Tol, and grays. The markers tell the lines apart without colors.
_COLORS = (
    *("#56b4e9", "#e69f00", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#a6930a", "#882255"),
    *("#777777", "#444444", "#332288", "#117733", "#44aa99", "#aa4499", "#ddcc77", "#cc6677"),
)
_MARKERS = "osD^vP<>Xpdh+x1|"
_STYLES = ("-", "--", ":")
_INCHES = (5.0, 4.6)  # width and height of the axes for a number of ranks
_LEGEND_INCHES = 2.2
_LINE_INCHES = 0.2  # height of a line in the legend

Line = tuple[str, int | None]  # a schedule, and the requested chunks


def draw_sweep(comparisons: Sequence[Comparison], title: str) -> Figure:
    """Draws axes for each number of ranks and replicas, without schedules that cannot be used.

    Args:
        comparisons: the comparisons of one subject for different settings.
        title: the title of the figure.
    """
    sizes = sorted({(each.setting.ranks, each.setting.replicas) for each in comparisons})
    lines = list(
        dict.fromkeys(
            (outcome.name, comparison.setting.chunks)
            for comparison in comparisons
            for outcome in comparison.outcomes
            if not outcome.refused
        )
    )
    width = _INCHES[0] * len(sizes) + _LEGEND_INCHES
    height = max(_INCHES[1], _LINE_INCHES * (len(lines) + 6))  # including the title
    figure = Figure(figsize=(width, height), layout="constrained")
    write_title(figure, title)
    all_axes = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axes, size in zip(all_axes, sizes, strict=True):
        those = [
            each for each in comparisons if (each.setting.ranks, each.setting.replicas) == size
        ]
        _draw_axes(axes, those, lines)
    all_axes[0].set_ylabel(comparisons[0].subject.unit)
    all_axes[0].set_ylim(bottom=0)
    write_legend(figure, all_axes[0].get_legend_handles_labels()[0], "outside right center")
    return figure


def _draw_axes(axes: Axes, comparisons: Sequence[Comparison], lines: Sequence[Line]) -> None:
    numbers = sorted({each.setting.microbatches for each in comparisons})
    chunks_of = list(dict.fromkeys(chunks for _, chunks in lines))
    for name, chunks in lines:
        points = _points(comparisons, (name, chunks))
        place = NAMES.index(name) if name in NAMES else len(NAMES)
        axes.plot(
            numbers,
            [points.get(number, float("nan")) for number in numbers],
            label=name if chunks is None else f"{name}, v = {chunks}",
            color="black" if name == AUTO else _COLORS[place],
            marker="*" if name == AUTO else _MARKERS[place],
            markersize=10 if name == AUTO else 5,
            linestyle=_STYLES[chunks_of.index(chunks) % len(_STYLES)],
            linewidth=1.4,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.minorticks_off()
    axes.set_xlabel("micro-batches of a step")
    setting = comparisons[0].setting
    replicas = f", replicas: {setting.replicas}" if setting.replicas > 1 else ""
    axes.set_title(f"ranks: {setting.ranks}{replicas}", fontsize=10, loc="left")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def _points(comparisons: Sequence[Comparison], line: Line) -> dict[int, float]:
    """The throughput by number of micro-batches, where the schedule can be used."""
    return {
        comparison.setting.microbatches: comparison.throughput(simulated)
        for comparison in comparisons
        for outcome, simulated in comparison.shown
        if (outcome.name, comparison.setting.chunks) == line and not outcome.refused
    }
