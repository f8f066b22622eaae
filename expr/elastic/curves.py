"""The figure of accuracy over the time of training."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

# From the palette of Okabe and Ito, which color-blind people can distinguish.
COLORS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class Curve:
    """The accuracy of one training over time.

    Attributes:
        seconds: from the beginning to the end of each epoch.
        accuracy: at the end of each epoch, 0 to 1.
    """

    seconds: tuple[float, ...]
    accuracy: tuple[float, ...]


def accuracy_over_time(
    curves: Mapping[str, Sequence[Curve]], target: float | None, *, title: str = ""
) -> Figure:
    """Draws each method's accuracy over time: a thin line per seed, a thick one for the median.

    Args:
        curves: for each method, one per seed.
        target: accuracy at which a line is drawn; None for no line.
        title: title of the figure.
    """
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for number, (method, of_seeds) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        style = "-" if number < len(COLORS) else "--"
        for curve in of_seeds:
            axes.plot(curve.seconds, curve.accuracy, style, color=color, linewidth=0.6, alpha=0.5)
        middle = median_curve(of_seeds)
        axes.plot(middle.seconds, middle.accuracy, style, color=color, linewidth=2.2, label=method)
    if target is not None:
        axes.axhline(target, color="#555555", linewidth=1, linestyle=":")
        axes.annotate(
            f"target {target:.3f}",
            (0, target),  # where curves are still below it
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            xytext=(4, 3),
            fontsize=9,
        )
    axes.set_xlim(left=0)
    axes.set_xlabel("time of training (s)")
    axes.set_ylabel("validation accuracy")
    axes.set_title(title, loc="left")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    return figure


def median_curve(curves: Sequence[Curve]) -> Curve:
    """Returns the medians of the seconds, and of the accuracy, of each epoch."""
    return Curve(
        tuple(map(statistics.median, zip(*(curve.seconds for curve in curves), strict=False))),
        tuple(map(statistics.median, zip(*(curve.accuracy for curve in curves), strict=False))),
    )
