"""Costs and plans with indices in place of names, for the simulator's loop.

The conversion also checks that costs and plans fit each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ooodist.errors import UserError
from ooodist.planner.costs import ITEM_BYTES, Network, StepCosts, WeightCost
from ooodist.planner.data_parallel.plan import (
    Plan,
    PlannedExchange,
    carried_exchanges,
    low_rank_exchanges,
    narrow_exchanges,
    split_evenly,
)
from ooodist.planner.low_rank import can_be_thin, thin_bytes, thin_seconds
from ooodist.planner.wire import NARROWING_COPIES, narrowed_weight

Found = TypeVar("Found")
MOST_KNOWN = 100_000  # converted exchanges that are kept


class Piece(NamedTuple):
    """One message on the network: an exchange, or a piece that the engine splits off.

    Attributes:
        push_seconds, pull_seconds: seconds that it occupies the first and the second lane.
        cpu_seconds: seconds that it takes from the compute stream, if that has work.
    """

    num_bytes: int
    push_seconds: float
    pull_seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class IndexedPlan:
    """A plan for one step, with indices.

    Attributes:
        order: indices of the backward units.
        ready_after: for each weight, the number of units of the order after which its gradient is
            ready.
        handed_over: the exchanges that the step hands to the network, by index in the plan: item 0
            before the backward pass, item i when its i-th unit has run.
        handed_over_last: the same for the last step of a call, which leaves some to the next call.
        carried: what it leaves, by index in the plan; the next call begins with it.
        weights: for each exchange, the weights in it; none for the first of two (see ``second``).
        pieces: for each exchange, its pieces.
        num_parts: for each weight, how many exchanges must arrive before it can be updated.
        second: for each exchange in low rank, the one that follows it, which has an index beyond
            those in the plan.
    """

    order: list[int]
    ready_after: list[int]
    handed_over: list[list[int]]
    handed_over_last: list[list[int]]
    carried: list[int]
    weights: list[tuple[int, ...]]
    pieces: list[tuple[Piece, ...]]
    num_parts: list[int]
    second: dict[int, int]


class _IndexedOrder(NamedTuple):
    names: tuple[str, ...] | None
    order: list[int]
    ready_after: list[int]


class _IndexedExchange(NamedTuple):
    weights: tuple[int, ...]
    pieces: tuple[Piece, ...]
    second: tuple[Piece, ...] = ()


class IndexedCosts:
    """Costs with indices: units and weights are numbered by their place in ``costs``.

    Attributes:
        forward: seconds of each F unit, and the weights that it waits for.
        forward_seconds: seconds of all F units.
        middle_seconds: seconds between the passes.
        backward_seconds: seconds of each backward unit, in baseline order.
        update_seconds: seconds of each weight's update.
        all_awaited: whether an F unit waits for each weight, so that a forward pass does not end
            before all earlier exchanges have arrived.

    Raises:
        UserError: a name is not unique, or undefined.
    """

    def __init__(self, costs: StepCosts, network: Network) -> None:
        self._costs = costs
        self._network = network
        self._unit_of = _numbered("unit", (unit.name for unit in costs.backward))
        _numbered("unit", (unit.name for unit in (*costs.forward, *costs.backward)))
        self._weight_of = _numbered("weight", (weight.name for weight in costs.weights))
        _check_names(costs)
        self.update_seconds = [weight.update_seconds for weight in costs.weights]
        self.backward_seconds = [unit.seconds for unit in costs.backward]
        self.middle_seconds = costs.middle_seconds
        self.forward = [
            (unit.seconds, tuple(self._weight_of[name] for name in unit.weights))
            for unit in costs.forward
        ]
        awaited = {weight for unit in costs.forward for weight in unit.weights}
        self.all_awaited = len(awaited) == len(costs.weights)
        self._needs = [tuple(self._unit_of[name] for name in unit.needs) for unit in costs.backward]
        self._weights_of_unit = [
            tuple(self._weight_of[name] for name in unit.weights) for unit in costs.backward
        ]
        self.forward_seconds = sum(unit.seconds for unit in costs.forward)
        # Plans of a search share most of their exchanges, and often the order.
        self._last_order: _IndexedOrder | None = None
        self._exchanges: dict[tuple[object, ...], _IndexedExchange] = {}
        self._part_bytes: dict[tuple[WeightCost, int], list[int]] = {}
        self._pieces: dict[tuple[int, int | None, int], tuple[Piece, ...]] = {}

    def index(self, plan: Plan) -> IndexedPlan:
        """Converts the plan. Raises UserError if it does not fit the costs."""
        order, ready_after = self._index_order(plan)
        if self._network.workers == 1:
            # Nothing is exchanged, so nothing is carried: a gradient arrives when it is ready.
            count = len(ready_after)
            alone: list[tuple[int, ...]] = [(weight,) for weight in range(count)]
            over = _handed_over(enumerate(alone), order, ready_after, in_sequence=False)
            free: tuple[Piece, ...] = (Piece(0, 0.0, 0.0, 0.0),)
            return IndexedPlan(
                order, ready_after, over, over, [], alone, [free] * count, [1] * count, {}
            )
        if plan.narrow:
            self._of_plan(plan, narrow_exchanges)
        thin = self._of_plan(plan, low_rank_exchanges) if plan.low_rank else {}
        exchanges = self._index_exchanges(plan, thin)
        weights, pieces = [e.weights for e in exchanges], [e.pieces for e in exchanges]
        in_sequence = not plan.by_urgency
        over = last = _handed_over(enumerate(weights), order, ready_after, in_sequence=in_sequence)
        carried = carried_exchanges(plan)
        if carried:
            left = set(carried)
            others = [pair for pair in enumerate(weights) if pair[0] not in left]
            last = _handed_over(others, order, ready_after, in_sequence=in_sequence)
        parts = self._num_parts(plan, weights)
        second = {first: len(exchanges) + place for place, first in enumerate(thin)}
        for first in thin:
            weights.append(weights[first])
            weights[first] = ()
            pieces.append(exchanges[first].second)
        return IndexedPlan(order, ready_after, over, last, carried, weights, pieces, parts, second)

    def _of_plan(self, plan: Plan, exchanges: Callable[[Plan], Found]) -> Found:
        try:
            return exchanges(plan)
        except UserError as error:
            raise UserError(f"plan {plan.name}: {error}") from error

    def exchange_bytes(self, exchange: PlannedExchange, wire: str | None = None) -> int:
        """The bytes of an exchange, in the gradients' own dtype or in 16 bits.

        Raises UserError if its weight cannot be split so.
        """
        weights = [self._costs.weights[self._weight_of[name]] for name in exchange.weights]
        if wire is not None:
            weights = [narrowed_weight(weight, wire) for weight in weights]
        if exchange.parts == 1:
            return sum([weight.num_bytes for weight in weights])
        key = (weights[0], exchange.parts)
        if key not in self._part_bytes:
            self._part_bytes[key] = part_bytes(weights[0], exchange.parts)
        return self._part_bytes[key][exchange.part]

    def pieces(
        self, num_bytes: int, partition_bytes: int | None, num_copies: int = 0
    ) -> tuple[Piece, ...]:
        """The pieces in which the engine sends an exchange; all but the last are full."""
        key = (num_bytes, partition_bytes, num_copies)
        if key not in self._pieces:
            most = partition_bytes or max(1, num_bytes)
            full, rest = divmod(num_bytes, most)
            sizes = [most] * full + ([rest] if rest or not full else [])
            self._pieces[key] = tuple(self._piece(size, num_copies) for size in sizes)
        return self._pieces[key]

    def _piece(self, num_bytes: int, num_copies: int) -> Piece:
        network = self._network
        cpu_seconds_per_byte = (
            network.cpu_seconds_per_byte + num_copies * network.cpu_seconds_per_copied_byte
        )
        return Piece(
            num_bytes,
            network.fixed + num_bytes * network.seconds_per_byte,
            num_bytes * network.pull_seconds_per_byte,
            network.cpu_seconds_per_exchange + num_bytes * cpu_seconds_per_byte,
        )

    def check_order(self, plan: Plan) -> None:
        """Raises UserError unless the plan's order has each backward unit after those it needs."""
        self._index_order(plan)

    def _index_order(self, plan: Plan) -> tuple[list[int], list[int]]:
        """The indices of the backward units in the plan's order, and ``ready_after``."""
        known = self._last_order
        if known is not None and known.names is plan.order:
            return known.order, known.ready_after
        count = len(self._unit_of)
        names = self._unit_of if plan.order is None else plan.order
        try:
            order = [self._unit_of[name] for name in names]
        except KeyError as error:
            raise UserError(
                f"plan {plan.name}: there is no backward unit {error.args[0]} in the costs; "
                "plan anew for this model"
            ) from error
        done = [False] * count
        ready_after = [0] * len(self._costs.weights)
        for place, unit in enumerate(order, start=1):
            for needed in self._needs[unit]:
                if not done[needed]:
                    raise self._needs_more(plan, unit, done)
            done[unit] = True
            for weight in self._weights_of_unit[unit]:
                ready_after[weight] = place
        if len(order) != count or not all(done):
            raise UserError(
                f"plan {plan.name}: the order has {len(order)} units, {len(set(order))} of them "
                f"different; it must have each of the {count} backward units of the costs once"
            )
        self._last_order = _IndexedOrder(plan.order, order, ready_after)
        return order, ready_after

    def _needs_more(self, plan: Plan, unit: int, done: Sequence[bool]) -> UserError:
        cost = self._costs.backward[unit]
        missing = [name for name in cost.needs if not done[self._unit_of[name]]]
        return UserError(
            f"plan {plan.name}: {cost.name} stands before {', '.join(missing)}, which it needs; "
            "put it behind"
        )

    def _index_exchanges(self, plan: Plan, thin: Mapping[int, int]) -> list[_IndexedExchange]:
        """The weights and pieces of each exchange; ``thin`` has the ranks of some."""
        if len(self._exchanges) > MOST_KNOWN:
            self._exchanges.clear()
        known = self._exchanges
        found = []
        narrow = frozenset(plan.narrow)
        for number, exchange in enumerate(plan.exchanges):
            sent = plan.wire if exchange.weights[0] in narrow else thin.get(number)
            key = (exchange.weights, exchange.part, exchange.parts, plan.partition_bytes, sent)
            indexed = known.get(key)
            if indexed is None:
                indexed = known[key] = self._index_exchange(plan, exchange, sent)
            found.append(indexed)
        return found

    def _index_exchange(
        self, plan: Plan, exchange: PlannedExchange, sent: str | int | None
    ) -> _IndexedExchange:
        """Converts an exchange in full width, in 16 bits (their dtype) or in low rank."""
        try:
            weights = tuple([self._weight_of[name] for name in exchange.weights])
        except KeyError as error:
            raise UserError(
                f"plan {plan.name}: there is no weight {error.args[0]} in the costs; "
                "plan anew for this model"
            ) from error
        if isinstance(sent, int):
            return self._index_thin(plan, weights, sent)
        num_bytes = self.exchange_bytes(exchange, sent)
        num_copies = exchange.num_copies + (0 if sent is None else NARROWING_COPIES)
        return _IndexedExchange(weights, self.pieces(num_bytes, plan.partition_bytes, num_copies))

    def _index_thin(self, plan: Plan, weights: tuple[int, ...], rank: int) -> _IndexedExchange:
        """Converts an exchange in low rank. Raises UserError if a gradient cannot travel so."""
        costs = [self._costs.weights[weight] for weight in weights]
        for weight in costs:
            if not can_be_thin(weight, rank):
                raise UserError(
                    f"plan {plan.name}: low_rank {rank} has {weight.name}, whose gradient is no "
                    "matrix for which that is worth it; take it out, or plan anew for this model"
                )
        halves = []
        for half in (0, 1):
            num_bytes = sum(thin_bytes(weight, rank)[half] for weight in costs)
            spent = sum(thin_seconds(weight, rank, self._costs.low_rank)[half] for weight in costs)
            *pieces, last = self.pieces(num_bytes, plan.partition_bytes, 2 * (len(costs) > 1))
            halves.append((*pieces, last._replace(cpu_seconds=last.cpu_seconds + spent)))
        return _IndexedExchange(weights, *halves)

    def _num_parts(self, plan: Plan, weights: list[tuple[int, ...]]) -> list[int]:
        expected = [1] * len(self._weight_of)
        found = [0] * len(self._weight_of)
        for exchange, members in zip(plan.exchanges, weights, strict=True):
            for weight in members:
                found[weight] += 1
                expected[weight] = exchange.parts
        if found != expected:
            name = next(
                weight.name
                for weight, one, other in zip(self._costs.weights, found, expected, strict=True)
                if one != other
            )
            raise UserError(
                f"plan {plan.name}: the parts of {name} are not each exchanged once; "
                "each weight of the costs needs one exchange, or one for each of its parts"
            )
        return found


def _handed_over(
    exchanges: Iterable[tuple[int, tuple[int, ...]]],
    order: Sequence[int],
    ready_after: Sequence[int],
    *,
    in_sequence: bool,
) -> list[list[int]]:
    """The numbers of exchanges by when a step hands them over; see IndexedPlan.

    Args:
        exchanges: their numbers and weights, in the plan's order.
        order, ready_after: as in IndexedPlan.
        in_sequence: none is handed over before its predecessors.
    """
    handed_over: list[list[int]] = [[] for _ in range(len(order) + 1)]
    latest = 0
    for number, members in exchanges:
        place = ready_after[members[0]]
        if len(members) > 1:
            place = max([ready_after[weight] for weight in members])
        if in_sequence:
            place = latest = max(latest, place)
        handed_over[place].append(number)
    return handed_over


def part_bytes(weight: WeightCost, parts: int) -> list[int]:
    """The bytes of each chunk of a gradient. Raises UserError if it cannot be split so."""
    if weight.dtype not in ITEM_BYTES:
        raise UserError(
            f"the gradient of {weight.name} is of type {weight.dtype} and cannot be split into "
            f"{parts} parts; only {', '.join(ITEM_BYTES)} can"
        )
    item_bytes = ITEM_BYTES[weight.dtype]
    try:
        sizes = split_evenly(weight.num_bytes // item_bytes, item_bytes, parts)
    except ValueError as error:
        raise UserError(
            f"the gradient of {weight.name} has {weight.num_bytes} bytes, too few for {parts} "
            "parts; give it fewer"
        ) from error
    return [size * item_bytes for size in sizes]


def _numbered(what: str, names: Iterable[str]) -> dict[str, int]:
    listed = list(names)
    for name, count in Counter(listed).items():
        if count > 1:
            raise UserError(f"costs: {what} {name} is there {count} times; names must be unique")
    return {name: number for number, name in enumerate(listed)}


def _check_names(costs: StepCosts) -> None:
    """Raises UserError for a reference to an undefined unit or weight."""
    weights = {weight.name for weight in costs.weights}
    forward = {unit.name for unit in costs.forward}
    backward = {unit.name for unit in costs.backward}
    gradients: set[str] = set()
    for units, names in ((costs.forward, forward), (costs.backward, backward)):
        for unit in units:
            if unknown := {*unit.weights} - weights:
                raise UserError(f"costs: {unit.name} has unknown weights {sorted(unknown)}")
            if unknown := {*unit.needs} - names:
                raise UserError(f"costs: {unit.name} needs unknown units {sorted(unknown)}")
    for unit in costs.backward:
        if again := gradients & {*unit.weights}:
            raise UserError(
                f"costs: {unit.name} completes the gradients of {sorted(again)}, which another "
                "unit completes; name each weight in one backward unit"
            )
        gradients |= {*unit.weights}
    for tensor in costs.tensors:
        if unknown := {tensor.made_by, *tensor.used_by} - forward - backward:
            raise UserError(f"costs: a tensor is kept for unknown units {sorted(unknown)}")
