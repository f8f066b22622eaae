"""A plan: the order of the backward units, and the order, size and number of the exchanges.

A plan is data. It is found by :mod:`ooodist.planner.data_parallel.search`, evaluated by
:mod:`ooodist.planner.data_parallel.simulate`, carried out by :mod:`ooodist.step`, and stored as
YAML::

    name: planned
    order: ['dX:fc2', 'dW:fc2', 'dX:fc1', 'dW:fc1']
    exchanges:
    - weights: [fc1/kernel]
      part: 0
      parts: 2
    ...
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from ooodist.errors import UserError
from ooodist.planner.costs import Network, StepCosts
from ooodist.util import strict_yaml, yaml_dataclass
from ooodist.util.digest import hex_digest
from ooodist.util.replacing import replacing
from ooodist.util.yaml_dataclass import Range

Wire = Literal["float16", "bfloat16"]  # dtypes in which gradients of another can travel
WireSetting = Literal["float32", "float16", "bfloat16", "planned"]  # exchange.wire of a job
RankSetting = Annotated[int, Range(1)] | Literal["auto"] | None  # exchange.low_rank of a job
ALIGNMENT = 64  # bytes; TensorFlow splits a tensor without copying it at multiples of this


@dataclass(frozen=True)
class PlannedExchange:
    """One exchange: of whole gradients that travel together (a bucket), or of a chunk of one.

    Attributes:
        weights: the weights whose gradients travel in it; several only if ``parts`` is 1.
        part: index of the chunk, from 0.
        parts: number of chunks of the gradient (see :func:`split_evenly`).
        carried: whether the last step of a call leaves it to the next call, where it comes before
            all that are not, in the order of the plan. A weight of which only some chunks are
            carried is updated in the next call, too.
    """

    weights: tuple[str, ...]
    part: Annotated[int, Range(0)] = 0
    parts: Annotated[int, Range(1)] = 1
    carried: bool = False

    @property
    def name(self) -> str:
        """A name that is unique in a plan, and the same on every rank."""
        more = f"+{len(self.weights) - 1}" if len(self.weights) > 1 else ""
        chunk = f"[{self.part}/{self.parts}]" if self.parts > 1 else ""
        return f"{self.weights[0]}{more}{chunk}"

    @property
    def num_copies(self) -> int:
        """How often its bytes are copied: a bucket is joined and split again, chunks are joined."""
        return 2 if len(self.weights) > 1 else int(self.parts > 1)


@dataclass(frozen=True)
class InLowRank:
    """Weights whose gradients travel as two thin matrices of so many columns.

    Their exchanges, which carry nothing else and are no chunks, are the first of the two. The
    second ones, of the same weights, go without a place in the order, as soon as they can.
    """

    rank: Annotated[int, Range(1)]
    weights: tuple[str, ...]


@dataclass(frozen=True)
class Prediction:
    """The simulator's prediction for a plan when it was made: seconds of one step, and bytes.

    ``hidden_share`` is the share of the exchange that is hidden behind computation, 0 to 1.
    """

    step_seconds: float
    lower_bound_seconds: float
    baseline_seconds: float
    peak_bytes: int = 0
    hidden_share: float | None = None


@dataclass(frozen=True)
class Plan:
    """How the steps of a call run.

    Attributes:
        name: what made it: ``baseline``, ``tuned``, ``first_k``, ``priority``, ``planned``,
            ``carried``.
        order: names of the backward units in execution order; None imposes no order, and leaves
            it to TensorFlow.
        exchanges: all chunks of all gradients, each once, in the planned order.
        credit: how many exchanges may be in flight; None: any number.
        by_urgency: if False, exchanges start in their order, each when its gradients are ready and
            the credit allows it. If True, whenever the credit allows it, the first in the list of
            those that are ready starts (which the engine must support: see Network.by_urgency).
        partition_bytes: the largest piece into which the engine itself splits exchanges (BytePS);
            None: it does not. With ``by_urgency``, ``credit`` counts these pieces.
        wire: the 16-bit dtype in which the gradients of ``narrow`` travel; None: all travel in
            their own.
        narrow: weights whose gradients travel in ``wire``.
        low_rank: weights whose gradients travel in low rank.
        steps_per_execution: training steps that are traced into one function.
        model: digest of the model that it was made for (ooodist.graph.digest); empty: any model.
        engine, workers: the engine and number of workers that it was made for.
        predicted: the simulator's prediction.
    """

    name: str
    order: tuple[str, ...] | None
    exchanges: tuple[PlannedExchange, ...]
    credit: Annotated[int, Range(1)] | None = None
    by_urgency: bool = False
    partition_bytes: Annotated[int, Range(1)] | None = None
    wire: Wire | None = None
    narrow: tuple[str, ...] = ()
    low_rank: tuple[InLowRank, ...] = ()
    steps_per_execution: Annotated[int, Range(1)] = field(
        default=1, metadata={"was": "steps_per_launch"}
    )
    model: str = ""
    engine: str = ""
    workers: Annotated[int, Range(1)] = 1
    predicted: Prediction | None = None

    @property
    def carried(self) -> tuple[str, ...]:
        """The weights of which a call leaves an exchange, and so the update, to the next one."""
        names = (name for each in self.exchanges if each.carried for name in each.weights)
        return tuple(dict.fromkeys(names))

    def digest(self) -> str:
        """A hash of all that is carried out; the prediction is not part of it."""
        return hex_digest(yaml_dataclass.dump(replace(self, predicted=None)))


@dataclass(frozen=True)
class PlanWithCosts:
    """A plan and the costs that it was made from, which are None for a plan read from a file."""

    plan: Plan
    costs: StepCosts | None = None
    network: Network | None = None


def split_evenly(num_elements: int, item_bytes: int, parts: int) -> list[int]:
    """The number of elements of each chunk of a gradient: nearly equal, largest first.

    Chunks begin at multiples of ALIGNMENT bytes, so some are smaller.

    Raises:
        ValueError: there are too few elements for this many chunks.
    """
    per_block = max(1, ALIGNMENT // item_bytes)
    blocks = -(-num_elements // per_block)
    if not 1 <= parts <= blocks:
        raise ValueError(f"{num_elements} elements of {item_bytes} bytes into {parts} parts")
    bounds = [(-(-blocks * part // parts)) * per_block for part in range(parts)] + [num_elements]
    return [end - start for start, end in itertools.pairwise(bounds)]


def from_yaml(text: str, source: str) -> Plan:
    """Parses a plan from YAML text.

    Where it has a list ``carried``, as older files do, this names weights: all of their exchanges
    are carried.

    Raises:
        UserError: it is none, or cannot be carried out; names ``source`` as its origin.
    """
    value = strict_yaml.parse(text, source)
    if not isinstance(value, dict):
        raise UserError(f"{source} is no plan; make one with python -m ooodist.plan")
    try:
        given = dict(value)
        carried = yaml_dataclass.read(tuple[str, ...], given.pop("carried", []), "carried")
        plan = yaml_dataclass.read_dataclass(Plan, given, "")
        if carried and plan.carried:
            raise UserError(
                f"carried has {', '.join(carried)}, but exchanges of the plan say themselves "
                "whether they are carried; leave the list out"
            )
        if carried:
            plan = with_carried(plan, carried)
        check_exchanges(plan)
    except UserError as error:
        raise UserError(f"plan {source}: {error}") from error
    return plan


def read(file: Path) -> Plan:
    """Reads a plan from a file. Raises UserError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"plan {file} cannot be read: {error}; make one with python -m ooodist.plan"
        ) from error
    return from_yaml(text, str(file))


def write(plan: Plan, file: Path) -> None:
    """Writes a plan atomically: the file is complete or absent. Raises OSError."""
    with replacing(file) as temporary:
        yaml_dataclass.write_file(plan, temporary)


def check_exchanges(plan: Plan) -> None:
    """Raises UserError unless the plan exchanges each chunk of its weights exactly once.

    Nor may it narrow a part of a bucket, or weights that it does not exchange.
    """
    seen: dict[str, set[int]] = {}
    parts: dict[str, int] = {}
    for exchange in plan.exchanges:
        if not exchange.weights:
            raise UserError("the plan has an exchange without weights; remove it")
        if exchange.part >= exchange.parts or (exchange.parts > 1 and len(exchange.weights) > 1):
            raise UserError(
                f"the plan's exchange {exchange.name} has part {exchange.part} of "
                f"{exchange.parts} of {len(exchange.weights)} weights; a part is less than parts, "
                "and only a single weight has parts"
            )
        for weight in exchange.weights:
            known = parts.setdefault(weight, exchange.parts)
            if known != exchange.parts or exchange.part in seen.setdefault(weight, set()):
                raise UserError(
                    f"the plan does not have each part of {weight} once; "
                    "give all of its exchanges the same parts, and each a part of its own"
                )
            seen[weight].add(exchange.part)
    for weight, found in seen.items():
        if len(found) != parts[weight]:
            missing = next(part for part in range(parts[weight]) if part not in found)
            raise UserError(
                f"the plan has {len(found)} of the {parts[weight]} parts of {weight}, and lacks "
                f"part {missing}; add what is missing"
            )
    if plan.narrow and plan.wire is None:
        raise UserError(
            f"narrow has {', '.join(plan.narrow)}, but wire does not say in which dtype they "
            "travel; give wire, as float16"
        )
    narrow_exchanges(plan)
    low_rank_exchanges(plan)


def carried_exchanges(plan: Plan) -> list[int]:
    """The indices of the exchanges that a call leaves to the next one."""
    return [number for number, exchange in enumerate(plan.exchanges) if exchange.carried]


def with_carried(plan: Plan, weights: tuple[str, ...]) -> Plan:
    """The plan with all exchanges of these weights carried, and no others.

    Raises:
        UserError: it carries a part of a bucket, or a weight that it does not exchange.
    """
    chosen = set(_exchanges_of("carried", weights, plan))
    exchanges = (replace(e, carried=n in chosen) for n, e in enumerate(plan.exchanges))
    return replace(plan, exchanges=tuple(exchanges))


def narrow_exchanges(plan: Plan) -> list[int]:
    """The indices of the exchanges that travel in the plan's wire.

    Raises:
        UserError: it narrows a part of a bucket, or a weight that it does not exchange.
    """
    return _exchanges_of("narrow", plan.narrow, plan)


def low_rank_exchanges(plan: Plan) -> dict[int, int]:
    """The rank of each exchange that travels in low rank, by its index.

    Raises:
        UserError: a weight is there twice, is carried or narrow too, is a part of a bucket that is
            not of its rank, or is exchanged in chunks or not at all.
    """
    found: dict[int, int] = {}
    other = {*plan.carried, *plan.narrow}
    for group in plan.low_rank:
        if twice := other.intersection(group.weights):
            raise UserError(
                f"low_rank {group.rank} has {', '.join(sorted(twice))}, which the plan carries, "
                "narrows or has in low rank already; name each weight in one of them"
            )
        other.update(group.weights)
        for index in _exchanges_of(f"low_rank {group.rank}", group.weights, plan):
            if plan.exchanges[index].parts > 1:
                raise UserError(
                    f"low_rank {group.rank} has {plan.exchanges[index].weights[0]}, which is "
                    "exchanged in parts; exchange it whole"
                )
            found[index] = group.rank
    return found


def _exchanges_of(what: str, weights: tuple[str, ...], plan: Plan) -> list[int]:
    chosen = set(weights)
    if not chosen:
        return []
    numbers: list[int] = []
    exchanged: set[str] = set()
    for number, exchange in enumerate(plan.exchanges):
        members = chosen.intersection(exchange.weights)
        if not members:
            continue
        if len(members) < len(exchange.weights):
            left = sorted({*exchange.weights} - members)
            raise UserError(
                f"{what} has {', '.join(sorted(members))}, whose exchange {exchange.name} also "
                f"has {', '.join(left)}; name all weights of a bucket, or none"
            )
        numbers.append(number)
        exchanged |= members
    if unknown := chosen - exchanged:
        raise UserError(
            f"{what} has {', '.join(sorted(unknown))}, which the plan does not exchange; "
            "take it out, or plan anew for this model"
        )
    return numbers
