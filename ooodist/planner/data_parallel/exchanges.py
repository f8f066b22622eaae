"""Makes the exchanges of a plan: which gradients share a bucket or are split, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ooodist.planner.costs import ITEM_BYTES, Network, StepCosts, WeightCost
from ooodist.planner.data_parallel.plan import ALIGNMENT, PlannedExchange

FUSION_BYTES = 128 << 20  # Horovod's default


def ready_order(costs: StepCosts, order: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the weights in the order in which their gradients become ready.

    Weights that no backward unit completes come first: they are ready before the backward pass.
    """
    completed = {unit.name: unit.weights for unit in costs.backward}
    names = completed if order is None else order
    later = [weight for name in names for weight in completed[name]]
    behind = set(later)
    return (*(w.name for w in costs.weights if w.name not in behind), *later)


def need_order(costs: StepCosts) -> tuple[str, ...]:
    """The names of the weights in the order in which the next forward pass needs them.

    Weights that no forward unit needs come last.
    """
    return tuple(name for layer in layers_by_need(costs) for name in layer)


def layers_by_need(costs: StepCosts) -> list[tuple[str, ...]]:
    """The weights that each forward unit is the first to need, in forward order.

    Weights that no forward unit needs are the last item; none is empty.
    """
    seen: set[str] = set()
    layers = []
    everything = tuple(weight.name for weight in costs.weights)
    for names in (*(unit.weights for unit in costs.forward), everything):
        layers.append(tuple(name for name in dict.fromkeys(names) if name not in seen))
        seen.update(names)
    return [layer for layer in layers if layer]


class OrderFor:
    """Makes the legal order in which exchanges in a given sequence start as early as possible.

    It runs what the first exchange needs, then what the second one needs besides, and so on. The
    i-th exchange of a sequence cannot start before all that the first i need has run, in any order,
    and here nothing else has run by then.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._names = [unit.name for unit in costs.backward]
        number = {name: place for place, name in enumerate(self._names)}
        self._needs = [tuple(number[name] for name in unit.needs) for unit in costs.backward]
        self._completed_by = {
            weight: number[unit.name] for unit in costs.backward for weight in unit.weights
        }

    def sequence(self, exchanges: Iterable[PlannedExchange]) -> tuple[str, ...]:
        """The order for exchanges in this sequence."""
        done = bytearray(len(self._names))
        order: list[int] = []
        for exchange in exchanges:
            missing: list[int] = []
            for weight in exchange.weights:
                unit = self._completed_by.get(weight)
                if unit is not None and not done[unit]:
                    done[unit] = True
                    missing.append(unit)
            for unit in missing:  # the list grows meanwhile
                for needed in self._needs[unit]:
                    if not done[needed]:
                        done[needed] = True
                        missing.append(needed)
            missing.sort()
            order += missing
        order += [unit for unit, is_done in enumerate(done) if not is_done]
        return tuple([self._names[unit] for unit in order])


def most_urgent_first(
    costs: StepCosts, exchanges: Iterable[PlannedExchange]
) -> tuple[PlannedExchange, ...]:
    """Sorts exchanges by when the next forward pass needs them."""
    place = {name: index for index, name in enumerate(need_order(costs))}
    key = [(min(place[weight] for weight in e.weights), e.part, e) for e in exchanges]
    return tuple(exchange for _, _, exchange in sorted(key, key=lambda entry: entry[:2]))


def arrange(
    costs: StepCosts,
    weights: Iterable[str],
    *,
    bucket_bytes: int = 0,
    chunk_bytes: int | None = None,
) -> tuple[PlannedExchange, ...]:
    """Makes one exchange per weight, with small neighbors in buckets and large ones in chunks.

    Args:
        costs: sizes and dtypes of the weights.
        weights: names in the order of their exchanges.
        bucket_bytes: neighbors of one dtype share a bucket up to this size; 0: each alone.
        chunk_bytes: larger gradients are split into chunks of about this size; None: not split.
    """
    weight_of = {weight.name: weight for weight in costs.weights}
    exchanges: list[PlannedExchange] = []
    bucket: list[str] = []
    room = 0
    for name in weights:
        weight = weight_of[name]
        if bucket and weight.dtype == weight_of[bucket[0]].dtype and weight.num_bytes <= room:
            bucket.append(name)
            room -= weight.num_bytes
            continue
        if bucket:
            exchanges.append(PlannedExchange(tuple(bucket)))
        bucket, room = [name], bucket_bytes - weight.num_bytes
        parts = 1 if chunk_bytes is None else -(-weight.num_bytes // chunk_bytes)
        if parts > 1:
            exchanges += parts_of(weight, parts)
            bucket = []
    if bucket:
        exchanges.append(PlannedExchange(tuple(bucket)))
    return tuple(exchanges)


def fused(
    costs: StepCosts,
    network: Network,
    *,
    threshold: int = FUSION_BYTES,
    order: Sequence[str] | None = None,
) -> tuple[PlannedExchange, ...]:
    """The exchanges that Horovod's fusion makes of gradients that become ready in an order.

    It runs one at a time. When one ends, all that has become ready meanwhile travels together, up
    to ``threshold`` bytes. ``order`` is that of the backward units; None: baseline.
    """
    weight_of = {weight.name: weight for weight in costs.weights}
    units = {unit.name: unit for unit in costs.backward}
    ready, now = dict.fromkeys(ready_order(costs, order), 0.0), 0.0
    for unit in units.values() if order is None else (units[name] for name in order):
        now += unit.seconds
        ready.update(dict.fromkeys(unit.weights, now))
    exchanges: list[PlannedExchange] = []
    waiting, free = list(ready), 0.0  # in the order in which they become ready
    while waiting:
        first = weight_of[waiting[0]]
        free = max(free, ready[first.name])
        bucket, num_bytes = [first.name], first.num_bytes
        for name in waiting[1:]:
            weight = weight_of[name]
            num_bytes += weight.num_bytes
            if ready[name] > free or weight.dtype != first.dtype or num_bytes > threshold:
                break
            bucket.append(name)
        num_bytes = sum(weight_of[name].num_bytes for name in bucket)
        seconds_per_byte = network.seconds_per_byte + network.pull_seconds_per_byte
        free += network.latency + network.fixed + num_bytes * seconds_per_byte
        exchanges.append(PlannedExchange(tuple(bucket)))
        del waiting[: len(bucket)]
    return tuple(exchanges)


def parts_of(weight: WeightCost, parts: int) -> list[PlannedExchange]:
    """A gradient's exchanges in ``parts`` chunks, or in as many as it has room for."""
    parts = min(parts, max_parts(weight))
    return [PlannedExchange((weight.name,), part, parts) for part in range(parts)]


def max_parts(weight: WeightCost) -> int:
    """The largest number of chunks into which a gradient can be split."""
    item_bytes = ITEM_BYTES.get(weight.dtype)
    if item_bytes is None:
        return 1
    per_block = ALIGNMENT // item_bytes
    return max(1, -(-(weight.num_bytes // item_bytes) // per_block))
