"""Turns steps of data parallel training into charts: recorded ones, and simulated ones.

    recorded                                        simulated
    forward    | F 1 | F 2 | F 3 |    | F 1 |...    compute   | F 1 | F 2 | F 3 | dX 3 | dW 3 |...
    dX                  | dX 3 | ...  ^             exchange                                 |- 3 -|
    dW                      | dW 3 |  |             memory    a curve
    exchange                       |- 3 -|

An arrow leads from each gradient to its exchange, and on to the first forward unit of the next
step that uses the weights. Pictures show exchanges in violet where computation hides them, and in
red where nothing does; if servers are on hosts of their own, pushes are above pulls.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ooodist.planner.costs import Network, StepCosts, UnitCost
from ooodist.planner.data_parallel.plan import PlannedExchange
from ooodist.planner.data_parallel.simulate import ExchangeSpan, Simulation, UnitSpan
from ooodist.profiler.recording.intervals import (
    Interval,
    common_intervals,
    merge_intervals,
    without_intervals,
)
from ooodist.report.chart import Bar, Chart
from ooodist.report.overlap import idle_times

if TYPE_CHECKING:
    from ooodist.profiler.recording.timeline import Timeline  # imports TensorFlow

_RECORDED = {"F": "forward", "dX": "dX (input gradients)", "dW": "dW (weight gradients)"}
_COMPUTE = "compute"
_EXCHANGE = "exchange"
Span = TypeVar("Span", UnitSpan, ExchangeSpan)
_LANE_INCHES = 0.8  # names of layers need more room than numbers


def recorded(timeline: Timeline, *, first_step: int = 0, name: str = "rank 0") -> Chart:
    """The chart of a recording.

    Args:
        timeline: the recording.
        first_step: the number under which the first step is shown.
        name: shown above the lanes.
    """
    bars: list[Bar] = []
    places: dict[tuple[int, str | None], int] = {}
    details: dict[str, Any]
    for unit in timeline.units:
        places[unit.step, unit.name] = len(bars)
        details = {
            "step": unit.step + first_step,
            "busy_ms": unit.busy * 1e3,
            "ops": len(unit.events),
        }
        lane = _RECORDED[unit.kind]
        bars.append(Bar(lane, unit.kind, unit.name, unit.start, unit.end, details=details))
    chains = []
    for run in timeline.exchanges:
        details = {
            "step": run.step + first_step,
            "bytes": run.num_bytes,
            "weights": list(run.weights),
        }
        made, used = places.get((run.step, run.after)), places.get((run.step + 1, run.before))
        chains.append((made, len(bars), used))
        bars.append(Bar(_EXCHANGE, "exchange", run.name, run.start, run.end, details=details))
    lanes = {lane: lane for lane in (*_RECORDED.values(), _EXCHANGE)}
    return Chart(name, lanes, bars, arrows=_complete(chains))


def simulated(
    simulation: Simulation,
    costs: StepCosts,
    network: Network,
    *,
    name: str,
    title: str = "",
    calls: Sequence[tuple[float, int]] = ((0.0, 0),),
    order: Sequence[str] | None = None,
) -> Chart:
    """The chart of a simulated call.

    Args:
        simulation: the simulated call.
        costs, network: what it was simulated with.
        name: shown above the lanes of a trace.
        title: shown above a picture.
        calls: for each time that the call is shown, when it begins (seconds), and the number
            under which its first step is shown.
        order: the plan's order, to highlight dW units that run later than usual.
    """
    moved = deferred_units(costs.backward, order)
    bars: list[Bar] = []
    background: list[Bar] = []
    memory: list[tuple[float, int]] = []
    for begin, first_step in calls:
        call = _shifted(simulation, begin, first_step)
        idle = [(start + begin, end + begin) for start, end in idle_times(simulation)]
        bars += (_unit_bar(unit, moved) for unit in call.units)
        bars += (_exchange_bar(span, network, idle) for span in call.exchanges)
        background += _background(call, idle, begin)
        memory += call.memory
    begins: dict[int, float] = {}  # of the forward pass of each step
    for bar in bars:
        if bar.kind == "F":
            begins.setdefault(bar.details["step"], bar.start)
    return Chart(
        name,
        {_COMPUTE: _COMPUTE, _EXCHANGE: "push and\npull" if _has_servers(network) else _EXCHANGE},
        bars,
        title,
        label_names=("layer",),
        arrows=_arrows(bars, costs),
        curves={"memory": memory},
        background=background,
        marks=[(seconds, f" step {step}") for step, seconds in begins.items()],
        lane_inches=_LANE_INCHES,
    )


def calls_within(seconds: float, simulation: Simulation) -> list[tuple[float, int]]:
    """As many calls as it takes to fill this time, but at least two, to show the arrows from one
    to the next: for each its start, in seconds, and the number of its first step, from 1."""
    number = max(2, math.ceil(seconds / simulation.launch_seconds))
    return [(n * simulation.launch_seconds, n * simulation.steps + 1) for n in range(number)]


def deferred_units(backward: Sequence[UnitCost], order: Sequence[str] | None) -> frozenset[str]:
    """The dW units before which more dX units run than in baseline order.

    Args:
        backward: the units of the backward pass in baseline order.
        order: their names in a plan's order; None: baseline order.
    """
    kinds = {unit.name: unit.kind for unit in backward}

    def outputs_before(names: Sequence[str]) -> dict[str, int]:
        """The number of dX units before each dW unit."""
        numbers = itertools.accumulate(kinds[name] == "dX" for name in names)
        return dict(zip(names, numbers, strict=True))

    usual = outputs_before([unit.name for unit in backward])
    planned = usual if order is None else outputs_before(order)
    return frozenset(name for name in kinds if kinds[name] == "dW" and planned[name] > usual[name])


def _shifted(simulation: Simulation, begin: float, first_step: int) -> Simulation:
    """The call, if it begins at ``begin`` and with ``first_step``."""

    def shifted(span: Span) -> Span:
        step, start, end = span.step + first_step, span.start + begin, span.end + begin
        return replace(span, step=step, start=start, end=end)

    return replace(
        simulation,
        units=tuple(shifted(span) for span in simulation.units),
        exchanges=tuple(
            replace(shifted(span), ready=span.ready + begin) for span in simulation.exchanges
        ),
        memory=tuple((seconds + begin, number) for seconds, number in simulation.memory),
    )


def _unit_bar(unit: UnitSpan, moved: frozenset[str]) -> Bar:
    layer = unit.name.partition(":")[2]  # of an update, the name is that of a weight
    labels = (layer,) if layer and unit.kind != "update" else ()
    kind = "moved" if unit.name in moved else unit.kind
    return Bar(_COMPUTE, kind, unit.name, unit.start, unit.end, labels, {"step": unit.step})


def _exchange_bar(span: ExchangeSpan, network: Network, idle: Sequence[Interval]) -> Bar:
    """An exchange; its parts are its passages, each followed by what nothing hides of it."""
    details = {
        "step": span.step,
        "bytes": span.num_bytes,
        "weights": list(span.exchange.weights),
        "waited_ms": (span.start - span.ready) * 1e3,
    }
    kind, labels = "odd" if span.step % 2 else "even", (_short_name(span.exchange),)
    whole = Bar(_EXCHANGE, kind, span.exchange.name, span.start, span.end, labels, details)
    passages = [(span.start, span.end)]
    if _has_servers(network):
        pushed = span.start + network.fixed + span.num_bytes * network.seconds_per_byte
        pulled = span.end - span.num_bytes * network.pull_seconds_per_byte
        passages = [(span.start, pushed), (pulled, span.end)]
    parts = []
    for place, passage in enumerate(passages):
        part = replace(whole, start=passage[0], end=passage[1], row=(place, len(passages)))
        parts.append(part)
        for start, end in common_intervals([passage], idle):
            parts.append(replace(part, kind="exposed", start=start, end=end, labels=()))
    return replace(whole, parts=tuple(parts))


def _has_servers(network: Network) -> bool:
    """Whether pushing and pulling go in opposite directions, beside each other."""
    return bool(network.pull_seconds_per_byte)


def _background(simulation: Simulation, idle: Sequence[Interval], begin: float) -> Iterator[Bar]:
    """Yields what the compute stream does between units: it waits, or serves exchanges."""
    units = [(unit.start, unit.end) for unit in simulation.units]
    last = units[-1][1]
    spans = {
        "waits": idle,
        "serves": without_intervals([(begin, last)], merge_intervals([*units, *idle])),
        "middle": [(last, simulation.launch_seconds + begin)],
    }
    for kind, of_kind in spans.items():
        yield from (Bar(_COMPUTE, kind, "", start, end) for start, end in of_kind)


def _short_name(exchange: PlannedExchange) -> str:
    """The layer of the exchange's (first) weight, and its chunk."""
    weight = exchange.weights[0]
    chunk = f" {exchange.part + 1}/{exchange.parts}" if exchange.parts > 1 else ""
    return (weight.rpartition("/")[0] or weight) + chunk


def _arrows(bars: Sequence[Bar], costs: StepCosts) -> list[list[int]]:
    """Arrows from units that complete gradients to exchanges to the F units that wait."""
    makers = {weight: unit.name for unit in costs.backward for weight in unit.weights}
    users = {weight: unit.name for unit in reversed(costs.forward) for weight in unit.weights}
    places = {
        (bar.details["step"], bar.name): place
        for place, bar in enumerate(bars)
        if bar.lane == _COMPUTE and bar.kind != "update"
    }

    def shown(units: Mapping[str, str], step: int, weights: Sequence[str]) -> list[int]:
        # If an exchange is carried, the call with the units before it may not be shown.
        keys = ((step, units.get(weight, "")) for weight in weights)
        return [places[key] for key in keys if key in places]

    chains = []
    for place, bar in enumerate(bars):
        if bar.lane == _EXCHANGE:
            step, weights = bar.details["step"], bar.details["weights"]
            made, used = shown(makers, step, weights), shown(users, step + 1, weights)
            last = max(made, key=lambda at: bars[at].end, default=None)
            first = min(used, key=lambda at: bars[at].start, default=None)
            chains.append((last, place, first))
    return _complete(chains)


def _complete(chains: Sequence[tuple[int | None, int, int | None]]) -> list[list[int]]:
    """Chains without what is not shown, as far as they connect anything then."""
    arrows = ([place for place in chain if place is not None] for chain in chains)
    return [arrow for arrow in arrows if len(arrow) > 1]
