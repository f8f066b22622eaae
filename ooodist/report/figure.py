"""A picture of simulated timelines: what is moved, and how much of the exchange is hidden.

    stock      |--- step 1 --------------------------|--- step 2 ----------...
    compute    | F1 F2 F3 | dX3 dW3 dX2 dW2 dX1 dW1 | / waits / | F1 F2 F3 | ...
    exchange                   |== dW3 ==|== dW2 ==|###########|             ...

    planned    the same below it, with the same time axis

Bars of the exchange are coloured where computation hides them, and red where nothing does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ooodist.report.intervals import (
    Interval,
    common_intervals,
    merge_intervals,
    total_length,
    without_intervals,
)
from ooodist.schedule.costs import UnitCost
from ooodist.schedule.plan import PlannedExchange

if TYPE_CHECKING:
    from ooodist.schedule.simulate import Simulation, UnitSpan

STEPS_SHOWN = 2  # of the first panel; the others show what they get done in that time

# From the palette of Okabe and Ito, which colour-blind people can tell apart.
_F, _DX, _DW, _MOVED = "#56b4e9", "#e69f00", "#8fd0ae", "#00714f"
_UPDATE, _MIDDLE = "#777777", "#d9d9d9"
_HIDDEN = ("#7d6bb0", "#b3a8d6")  # of odd and of even steps
_EXPOSED = "#d62f1f"
_WAITS = "#fbe3df"

_COMPUTE_LANE = (1.05, 1.0)  # lower edge and height
_EXCHANGE_LANE = (0.0, 0.8)
_TOP = 2.5
_INCHES = (12.0, 2.3)  # width, and height of a panel
_LABEL_POINTS = 7.0
_POINTS_PER_INCH = 72
_POINTS_PER_LANE = 47  # of a lane of height 1
_AXES_SHARE = 0.9  # of the picture's width
_LETTER_WIDTH, _LINE_HEIGHT = 0.62, 1.3  # of the font's size, about
_THIN_POINTS = 2.0  # bars thinner than this on average have no edges


@dataclass(frozen=True)
class Panel:
    """One timeline.

    Attributes:
        title: shown above it.
        simulation: of a launch; it is shown as often as it takes to fill the time axis.
        moved: names of dW units that are to stand out, because they run later than usual.
    """

    title: str
    simulation: Simulation
    moved: frozenset[str] = frozenset()


def deferred_units(backward: Sequence[UnitCost], order: Sequence[str] | None) -> frozenset[str]:
    """The dW units before which more dX units run than in stock order.

    Args:
        backward: the units of the backward pass in stock order.
        order: their names in a plan's order; None: stock order.
    """
    kinds = {unit.name: unit.kind for unit in backward}
    usual = _outputs_before([unit.name for unit in backward], kinds)
    planned = _outputs_before(order or list(kinds), kinds)
    return frozenset(name for name in usual if planned[name] > usual[name])


def _outputs_before(order: Sequence[str], kinds: Mapping[str, str]) -> dict[str, int]:
    """For each dW unit, how many dX units stand before it."""
    result, outputs = {}, 0
    for name in order:
        if kinds[name] == "dX":
            outputs += 1
        else:
            result[name] = outputs
    return result


def draw(panels: Sequence[Panel], title: str) -> Figure:
    """The picture, with a panel below the other and one time axis in milliseconds.

    Args:
        panels: the first one's simulation decides how much time is shown.
        title: of the picture.
    """
    seconds = STEPS_SHOWN * panels[0].simulation.step_seconds
    # A figure of its own rather than pyplot's, which keeps all figures of a process.
    figure = Figure(figsize=(_INCHES[0], _INCHES[1] * len(panels) + 1), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, horizontalalignment="left")
    all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_panel(axes, panel, seconds)
    all_axes[-1].set_xlabel("time (ms)")
    all_axes[-1].set_xlim(0, seconds * 1e3)
    figure.legend(
        handles=[Patch(facecolor=colour, label=label) for label, colour in _legend(panels)],
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=9,
    )
    return figure


def write(figure: Figure, files: Iterable[Path]) -> None:
    """Writes a picture, in the formats that the files' endings say. Raises OSError."""
    with matplotlib.rc_context({"svg.hashsalt": "ooodist", "svg.fonttype": "none"}):
        for file in files:
            # Without the date, so that the same picture is the same file.
            metadata = {"Date": None} if file.suffix == ".svg" else {}
            figure.savefig(file, dpi=160, metadata=metadata)


def _legend(panels: Sequence[Panel]) -> list[tuple[str, str]]:
    moved = any(panel.moved for panel in panels)
    return [
        ("F: forward", _F),
        ("dX: output gradient", _DX),
        ("dW: weight gradient", _DW),
        *([("dW, moved to later", _MOVED)] if moved else []),
        ("update", _UPDATE),
        ("loss, and between units", _MIDDLE),
        ("waits, or serves the exchange", _WAITS),
        ("exchange, hidden (step 1, 3, …)", _HIDDEN[0]),
        ("exchange, hidden (step 2, 4, …)", _HIDDEN[1]),
        ("exchange, not hidden", _EXPOSED),
    ]


def _draw_panel(axes: Axes, panel: Panel, seconds: float) -> None:
    simulation = panel.simulation
    num_launches = math.ceil(seconds / simulation.launch_seconds)
    begins = [i * simulation.launch_seconds for i in range(num_launches)]
    bars = _Bars(axes, seconds)

    busy = merge_intervals(
        (span.start + begin, span.end + begin) for begin in begins for span in simulation.units
    )
    idle = without_intervals([(0.0, seconds)], busy)
    bars.add(_COMPUTE_LANE, _WAITS, idle, edges=False)
    for colour, kind in _unit_kinds(panel.moved):
        chosen = [span for span in simulation.units if kind(span)]
        spans = [(s.start + begin, s.end + begin) for begin in begins for s in chosen]
        bars.add(_COMPUTE_LANE, colour, spans)
        if colour != _UPDATE:
            dark = colour == _MOVED
            labels = [span.name.partition(":")[2] for _ in begins for span in chosen]
            bars.label(_COMPUTE_LANE, spans, labels, "white" if dark else "black")

    _draw_exchanges(bars, simulation, begins, busy)
    _draw_steps(axes, simulation, begins, seconds)
    axes.set_title(panel.title, fontsize=11, loc="left")
    axes.set_ylim(-0.1, _TOP)
    axes.set_yticks(
        [low + height / 2 for low, height in (_EXCHANGE_LANE, _COMPUTE_LANE)],
        ["exchange", "compute"],
    )
    axes.tick_params(axis="y", length=0)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)


def _unit_kinds(moved: frozenset[str]) -> list[tuple[str, Callable[[UnitSpan], bool]]]:
    """Each colour, and which units have it."""
    return [
        (_F, lambda span: span.kind == "F"),
        (_DX, lambda span: span.kind == "dX"),
        (_DW, lambda span: span.kind == "dW" and span.name not in moved),
        (_MOVED, lambda span: span.kind == "dW" and span.name in moved),
        (_UPDATE, lambda span: span.kind == "update"),
        (_MIDDLE, lambda span: span.kind == "middle"),
    ]


def _draw_exchanges(
    bars: _Bars, simulation: Simulation, begins: Sequence[float], busy: Sequence[Interval]
) -> None:
    """Exchanges that overlap in time (push and pull) stand above each other."""
    low, height = _EXCHANGE_LANE
    ends: list[float] = []
    rows: list[int] = []
    for span in sorted(simulation.exchanges, key=lambda span: span.start):
        free = (row for row, end in enumerate(ends) if end <= span.start)
        row = next(free, len(ends))
        ends[row:] = [span.end, *ends[row + 1 :]]
        rows.append(row)
    exchanges = sorted(simulation.exchanges, key=lambda span: span.start)
    share = height / max(len(ends), 1)
    for launch, begin in enumerate(begins):
        for span, row in zip(exchanges, rows, strict=True):
            lane = (low + height - (row + 1) * share, share)
            whole = [(span.start + begin, span.end + begin)]
            step = launch * simulation.steps + span.step
            colour = _HIDDEN[step % len(_HIDDEN)]
            bars.add(lane, colour, whole)
            bars.add(lane, _EXPOSED, without_intervals(whole, busy))
            bars.label(lane, whole, [_short_name(span.exchange)], "white")


def _short_name(exchange: PlannedExchange) -> str:
    """The layer that it is of, or begins with, and which chunk it is."""
    weight = exchange.weights[0]
    chunk = f" {exchange.part + 1}/{exchange.parts}" if exchange.parts > 1 else ""
    return (weight.rpartition("/")[0] or weight) + chunk


def _draw_steps(
    axes: Axes, simulation: Simulation, begins: Sequence[float], seconds: float
) -> None:
    """A line where each step's forward pass begins, and the step's number."""
    firsts: dict[int, float] = {}
    for launch, begin in enumerate(begins):
        for span in simulation.units:
            step = launch * simulation.steps + span.step
            if span.kind == "F" and step not in firsts:
                firsts[step] = span.start + begin
    for step, start in firsts.items():
        if start < seconds:
            axes.axvline(start * 1e3, color="black", linewidth=1)
            axes.text(start * 1e3, _TOP, f" step {step + 1}", fontsize=9, verticalalignment="top")


class _Bars:
    """Bars on an axis in milliseconds that shows a given time."""

    def __init__(self, axes: Axes, seconds: float) -> None:
        self._axes = axes
        self._seconds = seconds
        self._points_per_second = _INCHES[0] * _AXES_SHARE * _POINTS_PER_INCH / seconds

    def add(
        self,
        lane: tuple[float, float],
        colour: str,
        spans: Sequence[Interval],
        *,
        edges: bool = True,
    ) -> None:
        shown = common_intervals(sorted(spans), [(0.0, self._seconds)])
        if not shown:
            return
        points = total_length(shown) / len(shown) * self._points_per_second
        self._axes.broken_barh(
            [(start * 1e3, (end - start) * 1e3) for start, end in shown],
            lane,
            facecolors=colour,
            edgecolors="white",
            linewidth=0.5 if edges and points > _THIN_POINTS else 0.0,
        )

    def label(
        self,
        lane: tuple[float, float],
        spans: Sequence[Interval],
        labels: Sequence[str],
        colour: str,
    ) -> None:
        """Writes each label on its bar, upright if need be, if there is room for it."""
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
                    color=colour,
                    rotation=0 if lies else 90,
                    horizontalalignment="center",
                    verticalalignment="center",
                )
