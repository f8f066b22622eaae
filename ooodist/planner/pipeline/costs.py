"""The cost model of pipeline stages: seconds and bytes per micro-batch.

Bytes that a micro-batch keeps on a stage, over time::

         F                     I                     W
    _____|---- input_bytes ----|                     |        what only I needs
         |----------------- weight_bytes ------------|        what W needs
                               |-- gradient_bytes ---|        what I makes for W

Replicas of a pipeline sum the gradients of a stage in buckets. The W's at the end of a rank's
schedule, its *tail*, run bucket by bucket (``a``, ``b``, ``c``), so that sums run beside them::

    rank       ... I3 W0a W1a W2a W3a W0b W1b W2b W3b W0c W1c W2c W3c
    exchange                         |---- a ----|   |---- b ----|   |---- c ----|
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from ooodist.errors import UserError
from ooodist.planner.costs import Bytes, Seconds
from ooodist.planner.pipeline.actions import Kind
from ooodist.util.yaml_dataclass import Range

BUCKET_BYTES = 4 << 20  # of gradients that are summed together, if there are more
MOST_BUCKETS = 16  # of a stage: each adds a call for every micro-batch
RECEIVES_AHEAD = 2  # receive buffers that a rank posts before the messages are needed


@dataclass(frozen=True)
class StageCost:
    """The cost of one micro-batch on one stage, in seconds and bytes.

    Attributes:
        forward: seconds of F.
        input_gradient: seconds of I.
        weight_gradient: seconds of W.
        input_bytes: bytes kept from F to the end of I.
        weight_bytes: bytes kept from F to the end of W.
        gradient_bytes: bytes kept from I to the end of W.
        base_bytes: bytes kept all the time: weights, optimizer state, accumulated gradients,
            messages in transit, and the workspace of a running action.
        state_bytes: of ``base_bytes``, those of weights and optimizer state; only messages tell
            them apart.
        send_seconds: seconds from the end of F until its output reaches the next stage.
        send_back_seconds: seconds from the end of I until its result reaches the previous stage.
        sent_bytes: bytes of the stage's output; the gradient that comes back is as large.
        update: seconds of the optimizer, once per step.
        exchange: seconds of summing the stage's gradients over the replicas of the pipeline, once
            per step, beside other work; 0 without replicas.
        buckets: into how many parts, about equal, W and the exchange are divided.
        exchange_cpu: seconds that the exchange takes from W's beside it, where the processor that
            computes them also moves and adds up the gradients; at most ``exchange``.
    """

    forward: Seconds = 1.0
    input_gradient: Seconds = 1.0
    weight_gradient: Seconds = 1.0
    input_bytes: Bytes = 0
    weight_bytes: Bytes = 0
    gradient_bytes: Bytes = 0
    base_bytes: Bytes = 0
    send_seconds: Seconds = 0.0
    send_back_seconds: Seconds = 0.0
    sent_bytes: Bytes = 0
    update: Seconds = 0.0
    state_bytes: Bytes = 0
    exchange: Seconds = 0.0
    buckets: Annotated[int, Range(1)] = 1
    exchange_cpu: Seconds = 0.0

    def seconds(self, kind: str) -> float:
        """The seconds that an action of this kind takes."""
        if kind == Kind.F:
            return self.forward
        if kind == Kind.I:
            return self.input_gradient
        if kind == Kind.W:
            return self.weight_gradient
        assert kind == Kind.B
        return self.input_gradient + self.weight_gradient

    def transfer_seconds(self, kind: str) -> float:
        """The seconds from the end of an action until the other stage has its result."""
        return self.send_seconds if kind == Kind.F else self.send_back_seconds

    def saved_bytes(self, kind: str) -> tuple[int, int]:
        """The change of the bytes kept, at the start and at the end of such an action."""
        if kind == Kind.F:
            return self.input_bytes + self.weight_bytes, 0
        if kind == Kind.I:
            return self.gradient_bytes, -self.input_bytes
        if kind == Kind.W:
            return 0, -self.weight_bytes - self.gradient_bytes
        assert kind == Kind.B
        return self.gradient_bytes, -sum(self.in_flight_bytes)

    def exchange_span(self, last: float, tail: float, free: float) -> tuple[float, float]:
        """Start and end of the stage's exchange.

        Its first bucket is done in the first part of the tail; the last one is exchanged after the
        last W. In between, either the sums or the W's are slower, so that only those two bound it.
        The W's after the first part take longer, as sums run beside them, but lose no more time
        than either lasts.

        Args:
            last: when the last W of the stage ends.
            tail: seconds before that in which its W's run bucket by bucket; 0: they do not.
            free: when the exchanges before it end.
        """
        start = max(free, last - tail * (1 - 1 / self.buckets))
        longer = min(self.exchange_cpu, self.exchange, tail) * (1 - 1 / self.buckets)
        return start, max(start + self.exchange, last + longer + self.exchange / self.buckets)

    @property
    def in_flight_bytes(self) -> tuple[int, int, int]:
        """The bytes that a micro-batch may keep on this stage: for I, for W, and from I for W."""
        return self.input_bytes, self.weight_bytes, self.gradient_bytes


class LacksMemory(UserError):
    """Raised where something does not fit into the memory limit.

    Attributes:
        lacking: bytes by which the limit must be raised for it to fit.
    """

    def __init__(self, message: str, lacking: int) -> None:
        super().__init__(message)
        self.lacking = lacking


@dataclass(frozen=True)
class PipelineCosts:
    """The costs of all stages of a pipeline.

    Attributes:
        stages: the cost of each stage, in order.
        memory_limit: bytes that a rank may keep for all its stages together; None: no limit.
        has_barrier: whether ranks wait for each other at the end of each step, as they do where an
            update needs something of all gradients. It decides which schedule is the fastest.
    """

    stages: tuple[StageCost, ...]
    memory_limit: Bytes | None = None
    has_barrier: bool = True

    def check(self, stages: int) -> None:
        """Raises UserError unless these are the costs of exactly ``stages`` stages."""
        if len(self.stages) != stages:
            raise UserError(
                f"the costs are those of {len(self.stages)} stages, the schedule has {stages}: "
                "measure the costs of these stages"
            )

    def most_of_one(self, stages: Sequence[int]) -> int:
        """The most bytes that one micro-batch keeps on a rank at once, if each W follows
        its I. No schedule needs less.

        Args:
            stages: stages of the rank, in order.
        """
        saved = most = 0
        for stage in stages:
            cost = self.stages[stage]
            saved += cost.input_bytes + cost.weight_bytes
            most = max(most, saved + cost.gradient_bytes)
        return most

    def composition(self, stages: Collection[int], num_bytes: int, microbatches: int) -> str:
        """Says in words what the bytes that a rank keeps are made of.

        Args:
            stages: the stages of the rank.
            num_bytes: what it keeps.
            microbatches: how many are in flight then.
        """
        state = sum(self.stages[stage].state_bytes for stage in stages)
        base = sum(self.stages[stage].base_bytes for stage in stages)
        flying = f"{microbatches} micro-batch{'es' if microbatches != 1 else ''}"
        return (
            f"{state} of weights and optimizer state, {base - state} of summed gradients and "
            f"buffers, {num_bytes - base} of activations of {flying}"
        )

    def refuse_one_microbatch(self, what: str, rank_of: Sequence[int]) -> LacksMemory:
        """The error for a limit into which not even one micro-batch fits.

        Args:
            what: what is refused, for the message.
            rank_of: the rank of each stage.
        """
        assert self.memory_limit is not None
        needed: dict[int, int] = {}
        for rank in sorted(set(rank_of)):
            own = stages_of_rank(rank_of, rank)
            base = sum(self.stages[stage].base_bytes for stage in own)
            needed[rank] = base + self.most_of_one(own)
        rank = max(needed, key=needed.__getitem__)
        own, lacking = stages_of_rank(rank_of, rank), needed[rank] - self.memory_limit
        return LacksMemory(
            f"{what}: a memory limit of {self.memory_limit} bytes a rank is too low for a single "
            f"micro-batch: {shown_stages(own)} on rank {rank} lacks {lacking} of {needed[rank]} "
            f"bytes ({self.composition(own, needed[rank], 1)}); raise the limit by {lacking}, make "
            "micro-batches smaller, or use more ranks",
            lacking,
        )


def bucket_bytes(num_bytes: int) -> int:
    """The most bytes of a bucket, given those of all gradients of a stage."""
    return max(BUCKET_BYTES, -(-num_bytes // MOST_BUCKETS))


def stages_of_rank(rank_of: Sequence[int], rank: int) -> list[int]:
    """The stages of a rank, in order."""
    return [stage for stage, owner in enumerate(rank_of) if owner == rank]


def shown_stages(stages: Sequence[int]) -> str:
    """Says in words the stages of a rank, which together need memory."""
    numbers = " and ".join(map(str, stages))
    return f"stage {numbers}" if len(stages) == 1 else f"all of stages {numbers}"


def forward_only(costs: PipelineCosts, first: int) -> PipelineCosts:
    """The costs if the stages before ``first`` only run forward.

    Those stages take no time for I, W, the exchange and the update, keep nothing for them, and
    receive no input gradients. Their ``base_bytes`` are unchanged.

    Args:
        costs: the costs if all stages train.
        first: the first stage that trains; 0: all train; the number of stages: none does.
    """
    if first == 0:
        return costs
    stages = list(costs.stages)
    for number, stage in enumerate(stages[: first + 1]):
        stages[number] = replace(stage, send_back_seconds=0.0)
    for number, stage in enumerate(stages[:first]):
        stages[number] = replace(
            stage,
            input_gradient=0.0,
            weight_gradient=0.0,
            input_bytes=0,
            weight_bytes=0,
            gradient_bytes=0,
            update=0.0,
            exchange=0.0,
            exchange_cpu=0.0,
        )
    return replace(costs, stages=tuple(stages))


def equal_stages(
    stages: int, forward: float = 1.0, input_gradient: float = 1.0, weight_gradient: float = 1.0
) -> PipelineCosts:
    """Equal costs for all stages: free transfers, and one byte kept per micro-batch."""
    cost = StageCost(forward, input_gradient, weight_gradient, weight_bytes=1)
    return PipelineCosts((cost,) * stages)
