"""A plan: the order of the backward units, and the order, size and number of the exchanges.

A plan is data. It is found by :mod:`ooodist.planner.data_parallel.search`, weighed by
:mod:`ooodist.planner.data_parallel.simulate`, carried out by :mod:`ooodist.step`, and kept as
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
from typing import Annotated

from ooodist.errors import UserError
from ooodist.util import yaml_dataclass
from ooodist.util.digest import hex_digest
from ooodist.util.replacing import replacing
from ooodist.util.yaml_dataclass import Range

ALIGNMENT = 64  # bytes; TensorFlow splits a tensor without copying it at multiples of this


@dataclass(frozen=True)
class PlannedExchange:
    """One exchange: whole gradients that travel together (a bucket), or a part of one (a chunk).

    Attributes:
        weights: whose gradients; several only if ``parts`` is 1.
        part: which of the parts, from 0.
        parts: into how many the gradient is split (see :func:`split_evenly`).
    """

    weights: tuple[str, ...]
    part: Annotated[int, Range(0)] = 0
    parts: Annotated[int, Range(1)] = 1

    @property
    def name(self) -> str:
        """Unique in a plan, and the same on every rank."""
        more = f"+{len(self.weights) - 1}" if len(self.weights) > 1 else ""
        chunk = f"[{self.part}/{self.parts}]" if self.parts > 1 else ""
        return f"{self.weights[0]}{more}{chunk}"

    @property
    def num_copies(self) -> int:
        """How often its bytes are copied: a bucket is joined and taken apart, parts are joined."""
        return 2 if len(self.weights) > 1 else int(self.parts > 1)


@dataclass(frozen=True)
class Prediction:
    """What the simulator said of a plan when it was made; seconds of one step, and bytes.

    ``hidden_share``: of the exchange, how much is hidden behind computation, 0 to 1.
    """

    step_seconds: float
    lower_bound_seconds: float
    baseline_seconds: float
    peak_bytes: int = 0
    hidden_share: float | None = None


@dataclass(frozen=True)
class Plan:
    """How the steps of a launch run.

    Attributes:
        name: what made it: ``baseline``, ``tuned``, ``first_k``, ``priority``, ``planned``.
        order: names of the backward units, one after the other; None: no order is imposed, and
            TensorFlow runs them as it does.
        exchanges: each part of each weight's gradient once, in the planned order.
        credit: how many exchanges may be in flight; None: any number.
        by_urgency: False: the exchanges start in their order, each when its gradients are ready
            and an earlier one has made room. True: whenever there is room, the first in the list
            of those that are ready starts (the engine must be able to: see Network.by_urgency).
        partition_bytes: the engine itself splits exchanges into pieces of at most this size
            (BytePS); None: it does not. With ``by_urgency``, ``credit`` counts these pieces.
        steps_per_execution: training steps that are traced into one function.
        model: digest of the model that it was made for (ooodist.graph.digest); empty: of any.
        engine, workers: that it was made for.
        predicted: what the simulator said of it.
    """

    name: str
    order: tuple[str, ...] | None
    exchanges: tuple[PlannedExchange, ...]
    credit: Annotated[int, Range(1)] | None = None
    by_urgency: bool = False
    partition_bytes: Annotated[int, Range(1)] | None = None
    steps_per_execution: Annotated[int, Range(1)] = field(
        default=1, metadata={"was": "steps_per_launch"}
    )
    model: str = ""
    engine: str = ""
    workers: Annotated[int, Range(1)] = 1
    predicted: Prediction | None = None

    def digest(self) -> str:
        """Differs when anything that is carried out differs; the prediction is not part of it."""
        return hex_digest(yaml_dataclass.dump(replace(self, predicted=None)))


def split_evenly(num_elements: int, item_bytes: int, parts: int) -> list[int]:
    """How many elements each part of a gradient has: about the same, and the first the most.

    Parts begin at multiples of ALIGNMENT bytes, so some are smaller.

    Raises:
        ValueError: there are not elements enough for so many parts.
    """
    per_block = max(1, ALIGNMENT // item_bytes)
    blocks = -(-num_elements // per_block)
    if not 1 <= parts <= blocks:
        raise ValueError(f"{num_elements} elements of {item_bytes} bytes into {parts} parts")
    bounds = [(-(-blocks * part // parts)) * per_block for part in range(parts)] + [num_elements]
    return [end - start for start, end in itertools.pairwise(bounds)]


def from_yaml(text: str, source: str) -> Plan:
    """The plan of YAML text. Raises UserError, in which ``source`` names where it is from."""
    value = yaml_dataclass.parse(text, source)
    if not isinstance(value, dict):
        raise UserError(f"{source} is no plan; make one with python -m ooodist.plan")
    try:
        plan = yaml_dataclass.read_dataclass(Plan, value, "")
        check_exchanges(plan)
    except UserError as error:
        raise UserError(f"plan {source}: {error}") from error
    return plan


def read(file: Path) -> Plan:
    """The plan of a file. Raises UserError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"plan {file} cannot be read: {error}; make one with python -m ooodist.plan"
        ) from error
    return from_yaml(text, str(file))


def write(plan: Plan, file: Path) -> None:
    """Writes a plan; the file is there whole, or not at all. Raises OSError."""
    with replacing(file) as temporary:
        yaml_dataclass.write_file(plan, temporary)


def check_exchanges(plan: Plan) -> None:
    """Raises UserError unless each part of each weight that the plan exchanges is there once."""
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
