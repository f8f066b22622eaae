"""A lower bound on the seconds of a step, over all plans, in the model of the simulator."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import numpy as np

from ooodist.planner.costs import Network, StepCosts


def lower_bound(
    costs: StepCosts, network: Network, steps_per_execution: int, *, carrying: bool = False
) -> float:
    """Seconds per step that no plan can beat, in the model of the simulator.

    A call takes at least its first forward pass, the minimum from each backward pass to the next,
    the minimum from the last backward pass to the end, and its fixed cost. Each of these minima is
    the larger of two:

    * compute: the units and updates one after the other; at the end also the wait for the exchange
      of the gradient that is ready last.
    * exchange: all gradients pass the lane, none before the units that it needs have run, and each
      is followed by its update and the forward units from the first that waits for it.

    Nor can a call be shorter than all its computing and the CPU time of all its exchanges: one
    core has to do both, and is not idle while it works for an exchange with no unit running.

    With ``carrying``, plans may leave exchanges to the next call. The end of a call is then no more
    than another way to the next backward pass, on which the fixed cost of a call is paid, during
    which nothing computes and nothing is exchanged.
    """
    if network.workers == 1:
        return costs.compute_seconds + costs.launch_seconds / steps_per_execution
    update = {weight.name: weight.update_seconds for weight in costs.weights}
    behind, rest_of_forward = {}, 0.0  # after the exchange, until the forward pass ends
    for unit in reversed(costs.forward):
        rest_of_forward += unit.seconds
        for weight in unit.weights:
            behind[weight] = update[weight] + rest_of_forward

    forward = rest_of_forward + costs.middle_seconds
    backward = sum(unit.seconds for unit in costs.backward)
    cycle = max(
        forward + backward + sum(update[weight] for weight in behind),
        _exchange_seconds(costs, network, behind) + costs.middle_seconds,
    )
    busy = costs.compute_seconds + _cpu_seconds(costs, network)
    if carrying:
        return max(cycle, busy) + costs.launch_seconds / steps_per_execution
    last = max(
        backward + sum(update.values()) + _idle_at_end(costs, network),
        _exchange_seconds(costs, network, update),
    )
    launch = forward + (steps_per_execution - 1) * cycle + last + costs.launch_seconds
    return max(launch, steps_per_execution * busy + costs.launch_seconds) / steps_per_execution


def _cpu_seconds(costs: StepCosts, network: Network) -> float:
    """The least CPU time that exchanging all gradients takes."""
    num_bytes = sum(weight.num_bytes for weight in costs.weights)
    dtypes = len({weight.dtype for weight in costs.weights})  # they share no exchange
    return num_bytes * network.cpu_seconds_per_byte + dtypes * network.cpu_seconds_per_exchange


def _exchange_seconds(costs: StepCosts, network: Network, behind: Mapping[str, float]) -> float:
    """The minimum from the start of the backward pass to the end of what follows exchanges.

    The fixed cost of exchanges is counted once per dtype: all gradients of one could share one.

    Args:
        costs, network: costs of the step.
        behind: seconds of what must follow each exchange, for the weights that count.
    """
    if not behind:
        return 0.0
    ready = {name: seconds + network.latency for name, seconds in _earliest(costs).items()}
    sizes = {weight.name: weight.num_bytes for weight in costs.weights if weight.name in behind}
    fixed = network.fixed * len({w.dtype for w in costs.weights if w.name in behind})
    start = min(ready[name] for name in behind)
    sent = fixed + sum(sizes.values()) * network.seconds_per_byte
    pulled = sum(sizes.values()) * network.pull_seconds_per_byte
    in_turn = start + max(sent, pulled) + min(behind.values())

    # Of the ready gradients, the lane always sends the one with the most to follow. No order can
    # beat that, even if exchanges may be interrupted (Jackson's preemptive rule, in: Carlier,
    # "The one-machine sequencing problem", European Journal of Operational Research 11, 1982).
    arrivals = sorted(behind, key=lambda name: ready[name])
    waiting: list[tuple[float, float]] = []  # (minus what follows, seconds still to be sent)
    now = end = 0.0
    for name, following in zip(arrivals, [*arrivals[1:], None], strict=True):
        now = max(now, ready[name])
        heapq.heappush(waiting, (-behind[name], sizes[name] * network.seconds_per_byte))
        until = float("inf") if following is None else ready[following]
        while waiting and now < until:
            minus_behind, seconds = heapq.heappop(waiting)
            if now + seconds > until:
                heapq.heappush(waiting, (minus_behind, now + seconds - until))
                now = until
            else:
                now += seconds
                end = max(end, now - minus_behind)
    return max(in_turn, end)


def _earliest(costs: StepCosts) -> dict[str, float]:
    """Finds when each gradient can be ready, in seconds from the start of the backward pass."""
    seconds = np.array([unit.seconds for unit in costs.backward])
    ready = {weight.name: 0.0 for weight in costs.weights}
    number = {unit.name: place for place, unit in enumerate(costs.backward)}
    # A row per unit: the unit, and all that must run before it.
    until = np.eye(len(number), dtype=bool)
    for place, unit in enumerate(costs.backward):
        for needed in unit.needs:
            until[place] |= until[number[needed]]
        for weight in unit.weights:
            ready[weight] = float(seconds[until[place]].sum())
    return ready


def _idle_at_end(costs: StepCosts, network: Network) -> float:
    """Seconds that compute must wait for the gradient ready last, whichever that is."""
    size = {weight.name: weight.num_bytes for weight in costs.weights}
    update = {weight.name: weight.update_seconds for weight in costs.weights}
    needed: set[str] = set()  # by units that complete a gradient
    useless = 0.0  # seconds of units that no gradient needs: they can run at the end
    last = []
    for unit in reversed(costs.backward):
        if unit.weights or unit.name in needed:
            if unit.name not in needed:
                last.append(unit)
            needed.update(unit.needs)
        else:
            useless += unit.seconds
    meanwhile = useless + sum(update.values())
    idle = [
        network.latency
        + network.fixed
        + sum(size[weight] for weight in unit.weights) * network.seconds_per_byte
        + min(update[weight] for weight in unit.weights)
        - meanwhile
        for unit in last
    ]
    return max(0.0, min(idle, default=0.0))
