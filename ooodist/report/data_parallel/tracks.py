"""Makes the content of a file for Perfetto: recorded steps, and simulated ones.

    recorded                                        simulated
    forward    | F 1 | F 2 | F 3 |    | F 1 |...    compute   | F 1 | F 2 | F 3 | dX 3 | dW 3 |...
    dX                  | dX 3 | ...  ^             exchange                                 |- 3 -|
    dW                      | dW 3 |  |             memory    a curve
    exchange                       |- 3 -|

An arrow leads from each gradient to its exchange, and on to the first forward unit of the next
step that uses the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ooodist.planner.costs import StepCosts
from ooodist.report.perfetto import Process, Slice

if TYPE_CHECKING:
    from ooodist.planner.data_parallel.simulate import ExchangeSpan, Simulation
    from ooodist.profiler.recording.timeline import Timeline  # imports TensorFlow

_RECORDED = {"F": "forward", "dX": "dX (input gradients)", "dW": "dW (weight gradients)"}
_COMPUTE = "compute"
_EXCHANGE = "exchange"


def recorded(timeline: Timeline, *, rank: int = 0, first_step: int = 0, title: str = "") -> Process:
    """Makes the process of a recording.

    Args:
        timeline: the recording.
        rank: the rank that it was made on.
        first_step: the number under which the first step is shown.
        title: shown above; by default the rank.
    """
    slices: list[Slice] = []
    places: dict[tuple[int, str], int] = {}
    details: dict[str, Any]
    for unit in timeline.units:
        places[unit.step, unit.name] = len(slices)
        details = {
            "step": unit.step + first_step,
            "busy_ms": unit.busy * 1e3,
            "ops": len(unit.events),
        }
        slices.append(
            Slice(_RECORDED[unit.kind], unit.kind, unit.name, unit.start, unit.end, details)
        )
    arrows = []
    for run in timeline.exchanges:
        made = places.get((run.step, run.after or ""))
        used = places.get((run.step + 1, run.before or ""))
        arrows.append(_chain(made, len(slices), used))
        details = {
            "step": run.step + first_step,
            "bytes": run.num_bytes,
            "weights": list(run.weights),
        }
        slices.append(Slice(_EXCHANGE, _EXCHANGE, run.name, run.start, run.end, details))
    return Process(
        number=rank,
        name=title or f"rank {rank}",
        tracks=(*_RECORDED.values(), _EXCHANGE),
        slices=slices,
        arrows=[arrow for arrow in arrows if len(arrow) > 1],
    )


def predicted(
    simulation: Simulation,
    costs: StepCosts,
    *,
    number: int,
    title: str,
    launches: Sequence[tuple[float, int]] = ((0.0, 0),),
) -> Process:
    """Makes the process of a simulated call.

    Args:
        simulation: the simulated call.
        costs: the costs that it was simulated with.
        number: number of the process.
        title: shown above.
        launches: for each time that the call is shown, when it begins (seconds), and the number
            under which its first step is shown.
    """
    slices: list[Slice] = []
    exchanges: list[tuple[int, int, ExchangeSpan]] = []  # step, place in slices
    places: dict[tuple[int, str], int] = {}
    memory: list[tuple[float, int]] = []
    for begin, first_step in launches:
        for unit in simulation.units:
            step = unit.step + first_step
            if unit.kind != "update":
                places[step, unit.name] = len(slices)
            span = (unit.start + begin, unit.end + begin)
            slices.append(Slice(_COMPUTE, unit.kind, unit.name, *span, {"step": step}))
        for exchange in simulation.exchanges:
            step = exchange.step + first_step
            exchanges.append((step, len(slices), exchange))
            details = {
                "step": step,
                "bytes": exchange.num_bytes,
                "weights": list(exchange.exchange.weights),
                "waited_ms": (exchange.start - exchange.ready) * 1e3,
            }
            span = (exchange.start + begin, exchange.end + begin)
            slices.append(Slice(_EXCHANGE, _EXCHANGE, exchange.exchange.name, *span, details))
        memory += [(seconds + begin, num_bytes) for seconds, num_bytes in simulation.memory]
    return Process(
        number=number,
        name=title,
        tracks=(_COMPUTE, _EXCHANGE),
        slices=slices,
        arrows=_arrows(exchanges, places, slices, costs),
        memory=memory,
    )


def _arrows(
    exchanges: Sequence[tuple[int, int, ExchangeSpan]],
    places: Mapping[tuple[int, str], int],
    slices: Sequence[Slice],
    costs: StepCosts,
) -> list[tuple[int, ...]]:
    """Arrows from units that complete gradients to exchanges to the F units that wait."""
    makers = {weight: unit.name for unit in costs.backward for weight in unit.weights}
    users = {weight: unit.name for unit in reversed(costs.forward) for weight in unit.weights}
    arrows = []
    for step, place, exchange in exchanges:
        weights = exchange.exchange.weights
        made = [  # in the call before, if the exchange is carried; that call may not be shown
            places[step, makers[weight]]
            for weight in weights
            if weight in makers and (step, makers[weight]) in places
        ]
        used = [
            places[step + 1, users[weight]]
            for weight in weights
            if weight in users and (step + 1, users[weight]) in places
        ]
        last = max(made, key=lambda at: slices[at].end, default=None)
        first = min(used, key=lambda at: slices[at].start, default=None)
        arrow = _chain(last, place, first)
        if len(arrow) > 1:
            arrows.append(arrow)
    return arrows


def _chain(*places: int | None) -> tuple[int, ...]:
    return tuple(place for place in places if place is not None)
