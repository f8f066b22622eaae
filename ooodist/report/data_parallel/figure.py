"""Draws simulated timelines: what is moved, and how much of the exchange is hidden.

    baseline      |--- step 1 --------------------------|--- step 2 ----------...
    compute    | F1 F2 F3 | dX3 dW3 dX2 dW2 dX1 dW1 | / waits / | F1 F2 F3 | ...
    exchange                   |== dW3 ==|== dW2 ==|###########|             ...

    planned    the same below it, with the same time axis

Exchanges are drawn in violet where computation hides them, and in red where nothing does.
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

from ooodist.planner.costs import Network, UnitCost
from ooodist.planner.data_parallel.plan import PlannedExchange
from ooodist.profiler.recording.intervals import Interval, common_intervals
from ooodist.report.bars import Bars
from ooodist.report.data_parallel.overlap import idle_times

if TYPE_CHECKING:
    from ooodist.planner.data_parallel.simulate import ExchangeSpan, Simulation, UnitSpan

STEPS_SHOWN = 2  # of the first panel; the others show how far they get in that time

# From the palette of Okabe and Ito, which color-blind people can distinguish.
_F, _DX, _DW, _MOVED = "#56b4e9", "#e69f00", "#8fd0ae", "#00714f"
_UPDATE, _MIDDLE = "#777777", "#d9d9d9"
_HIDDEN = ("#7d6bb0", "#b3a8d6")  # in odd and in even steps
_EXPOSED = "#d62f1f"
_WAITS, _SERVES = "#fbe3df", "#cc79a7"

_COMPUTE_LANE = (1.05, 1.0)  # lower edge and height
_EXCHANGE_LANE = (0.0, 0.8)
_TOP = 2.5
_LAST_LABEL = 0.96  # of the shown time; there is no room for a label after that
_INCHES = (12.0, 2.3)  # width, and height of a panel
_AXES_POINTS = 0.9 * _INCHES[0] * 72  # the part of the width that is the time axis


@dataclass(frozen=True)
class Panel:
    """One timeline.

    Attributes:
        title: shown above it.
        simulation: a simulated call, repeated until it fills the time axis.
        network: the network that it was simulated with.
        moved: names of dW units to highlight, because they run later than usual.
    """

    title: str
    simulation: Simulation
    network: Network
    moved: frozenset[str] = frozenset()


def deferred_units(backward: Sequence[UnitCost], order: Sequence[str] | None) -> frozenset[str]:
    """The dW units before which more dX units run than in baseline order.

    Args:
        backward: the units of the backward pass in baseline order.
        order: their names in a plan's order; None: baseline order.
    """
    kinds = {unit.name: unit.kind for unit in backward}
    usual = _outputs_before([unit.name for unit in backward], kinds)
    planned = _outputs_before(order or list(kinds), kinds)
    return frozenset(name for name in usual if planned[name] > usual[name])


def _outputs_before(order: Sequence[str], kinds: Mapping[str, str]) -> dict[str, int]:
    """Finds, for each dW unit, how many dX units precede it."""
    result, outputs = {}, 0
    for name in order:
        if kinds[name] == "dX":
            outputs += 1
        else:
            result[name] = outputs
    return result


def draw(panels: Sequence[Panel], title: str) -> Figure:
    """Draws the figure, one panel below the other, with one time axis in milliseconds.

    Args:
        panels: the first one's simulation decides how much time is shown.
        title: title of the figure.
    """
    seconds = STEPS_SHOWN * panels[0].simulation.step_seconds
    # Not pyplot's figure, as pyplot keeps all figures of a process.
    figure = Figure(figsize=(_INCHES[0], _INCHES[1] * len(panels) + 1), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, horizontalalignment="left")
    all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_panel(axes, panel, seconds)
    all_axes[-1].set_xlabel("time (ms)")
    all_axes[-1].set_xlim(0, seconds * 1e3)
    figure.legend(
        handles=[Patch(facecolor=color, label=label) for label, color in _legend(panels)],
        loc="outside lower center",
        ncols=6,
        frameon=False,
        fontsize=9,
    )
    return figure


def write(figure: Figure, files: Iterable[Path]) -> None:
    """Writes a figure in the formats of the files' suffixes. Raises OSError."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not again for each file
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        for file in files:
            figure.savefig(file, dpi=160)


def _legend(panels: Sequence[Panel]) -> list[tuple[str, str]]:
    moved = any(panel.moved for panel in panels)
    return [
        ("F: forward", _F),
        ("dX: input gradient", _DX),
        ("dW: weight gradient", _DW),
        *([("dW, moved later", _MOVED)] if moved else []),
        ("update", _UPDATE),
        ("loss, start of a call", _MIDDLE),
        ("CPU time of the exchange", _SERVES),
        ("waits", _WAITS),
        ("exchange, odd steps", _HIDDEN[0]),
        ("exchange, even steps", _HIDDEN[1]),
        ("exchange, not hidden", _EXPOSED),
    ]


def _draw_panel(axes: Axes, panel: Panel, seconds: float) -> None:
    simulation = panel.simulation
    num_launches = math.ceil(seconds / simulation.launch_seconds)
    begins = [i * simulation.launch_seconds for i in range(num_launches)]
    bars = Bars(axes, seconds, _AXES_POINTS)

    last = simulation.units[-1].end
    idle = idle_times(simulation)
    bars.add(_COMPUTE_LANE, _SERVES, _repeated([(0.0, last)], begins), edges=False)
    bars.add(_COMPUTE_LANE, _MIDDLE, _repeated([(last, simulation.launch_seconds)], begins))
    bars.add(_COMPUTE_LANE, "white", _repeated(idle, begins), edges=False)
    bars.add(_COMPUTE_LANE, _WAITS, _repeated(idle, begins), edges=False)
    for color, kind in _unit_kinds(panel.moved):
        chosen = [span for span in simulation.units if kind(span)]
        spans = _repeated([(span.start, span.end) for span in chosen], begins)
        bars.add(_COMPUTE_LANE, color, spans)
        if color not in (_UPDATE, _MIDDLE):
            labels = [span.name.partition(":")[2] for span in chosen] * num_launches
            text_color = "white" if color == _MOVED else "black"
            bars.label(_COMPUTE_LANE, spans, labels, text_color)

    _draw_exchanges(bars, panel, begins, _repeated(idle, begins))
    _draw_steps(axes, simulation, begins, seconds)
    axes.set_title(panel.title, fontsize=11, loc="left")
    axes.set_ylim(-0.1, _TOP)
    axes.set_yticks(
        [low + height / 2 for low, height in (_EXCHANGE_LANE, _COMPUTE_LANE)],
        ["push and\npull" if panel.network.pull_seconds_per_byte else "exchange", "compute"],
    )
    axes.tick_params(axis="y", length=0)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)


def _repeated(spans: Sequence[Interval], begins: Sequence[float]) -> list[Interval]:
    """Each span once for each call."""
    return [(start + begin, end + begin) for begin in begins for start, end in spans]


def _unit_kinds(moved: frozenset[str]) -> list[tuple[str, Callable[[UnitSpan], bool]]]:
    """Each color with a predicate for the units that have it."""
    return [
        (_F, lambda span: span.kind == "F"),
        (_DX, lambda span: span.kind == "dX"),
        (_DW, lambda span: span.kind == "dW" and span.name not in moved),
        (_MOVED, lambda span: span.kind == "dW" and span.name in moved),
        (_UPDATE, lambda span: span.kind == "update"),
        (_MIDDLE, lambda span: span.kind == "middle"),
    ]


def _draw_exchanges(
    bars: Bars, panel: Panel, begins: Sequence[float], idle: Sequence[Interval]
) -> None:
    """Draws the exchanges, or their pushes above their pulls."""
    low, height = _EXCHANGE_LANE
    passages = [_passages(span, panel.network) for span in panel.simulation.exchanges]
    rows = list(zip(*passages, strict=True))
    names = [_short_name(span.exchange) for span in panel.simulation.exchanges]
    for number, row in enumerate(rows):
        lane = (low + height * (1 - (number + 1) / len(rows)), height / len(rows))
        for parity, color in enumerate(_HIDDEN):
            spans = [
                (start + begin, end + begin)
                for launch, begin in enumerate(begins)
                for span, (start, end) in zip(panel.simulation.exchanges, row, strict=True)
                if (launch * panel.simulation.steps + span.step) % len(_HIDDEN) == parity
            ]
            bars.add(lane, color, spans)
        spans = _repeated(row, begins)
        bars.add(
            lane, _EXPOSED, [part for span in spans for part in common_intervals([span], idle)]
        )
        bars.label(lane, spans, names * len(begins), "white")


def _passages(span: ExchangeSpan, network: Network) -> list[Interval]:
    """Finds when an exchange occupies the lane, or each of two lanes."""
    if not network.pull_seconds_per_byte:
        return [(span.start, span.end)]
    pushed = span.start + network.fixed + span.num_bytes * network.seconds_per_byte
    pulled = span.end - span.num_bytes * network.pull_seconds_per_byte
    return [(span.start, pushed), (pulled, span.end)]


def _short_name(exchange: PlannedExchange) -> str:
    """The layer of the exchange's (first) weight, and its chunk."""
    weight = exchange.weights[0]
    chunk = f" {exchange.part + 1}/{exchange.parts}" if exchange.parts > 1 else ""
    return (weight.rpartition("/")[0] or weight) + chunk


def _draw_steps(
    axes: Axes, simulation: Simulation, begins: Sequence[float], seconds: float
) -> None:
    """Draws a line where each step's forward pass begins, with the step's number."""
    firsts: dict[int, float] = {}
    for launch, begin in enumerate(begins):
        for span in simulation.units:
            step = launch * simulation.steps + span.step
            if span.kind == "F" and step not in firsts:
                firsts[step] = span.start + begin
    for step, start in firsts.items():
        if start < _LAST_LABEL * seconds:
            axes.axvline(start * 1e3, color="black", linewidth=1)
            axes.text(start * 1e3, _TOP, f" step {step + 1}", fontsize=9, verticalalignment="top")
