"""The cost model of pipeline stages: seconds and bytes per micro-batch.

Bytes that a micro-batch keeps on a stage, over time::

         F                     I                     W
    _____|---- input_bytes ----|                     |        what only I needs
         |----------------- weight_bytes ------------|        what W needs
                               |-- gradient_bytes ---|        what I makes for W
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ooodist.errors import UserError
from ooodist.planner.costs import Bytes, Seconds
from ooodist.planner.pipeline.actions import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

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
        send_seconds: seconds from the end of F until its output reaches the next stage.
        send_back_seconds: seconds from the end of I until its result reaches the previous stage.
        sent_bytes: bytes of the stage's output; the gradient that comes back is as large.
        update: seconds of the optimizer, once per step.
        exchange: seconds of summing the stage's gradients over the replicas of the pipeline, once
            per step, beside other work; 0 without replicas.
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
    exchange: Seconds = 0.0

    def seconds(self, kind: str) -> float:
        """Returns the seconds that an action of this kind takes."""
        if kind == FORWARD:
            return self.forward
        if kind == INPUT_GRADIENT:
            return self.input_gradient
        if kind == WEIGHT_GRADIENT:
            return self.weight_gradient
        assert kind == BACKWARD
        return self.input_gradient + self.weight_gradient

    def transfer_seconds(self, kind: str) -> float:
        """Returns the seconds from the end of an action until the other stage has its result."""
        return self.send_seconds if kind == FORWARD else self.send_back_seconds

    def saved_bytes(self, kind: str) -> tuple[int, int]:
        """Returns the change of the bytes kept, at the start and at the end of such an action."""
        if kind == FORWARD:
            return self.input_bytes + self.weight_bytes, 0
        if kind == INPUT_GRADIENT:
            return self.gradient_bytes, -self.input_bytes
        if kind == WEIGHT_GRADIENT:
            return 0, -self.weight_bytes - self.gradient_bytes
        assert kind == BACKWARD
        return self.gradient_bytes, -sum(self.in_flight_bytes)

    @property
    def in_flight_bytes(self) -> tuple[int, int, int]:
        """The bytes that a micro-batch may keep on this stage: for I, for W, and from I for W."""
        return self.input_bytes, self.weight_bytes, self.gradient_bytes


@dataclass(frozen=True)
class PipelineCosts:
    """The costs of all stages of a pipeline.

    Attributes:
        stages: the cost of each stage, in order.
        memory_limit: bytes that a rank may keep for all its stages together; None: no limit.
    """

    stages: tuple[StageCost, ...]
    memory_limit: Bytes | None = None

    def check(self, stages: int) -> None:
        """Raises UserError unless these are the costs of exactly ``stages`` stages."""
        if len(self.stages) != stages:
            raise UserError(
                f"the costs are those of {len(self.stages)} stages, the schedule has {stages}: "
                "measure the costs of these stages"
            )


def forward_only(costs: PipelineCosts, first: int) -> PipelineCosts:
    """Returns the costs if the stages before ``first`` only run forward.

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
        )
    return replace(costs, stages=tuple(stages))


def equal_stages(
    stages: int, forward: float = 1.0, input_gradient: float = 1.0, weight_gradient: float = 1.0
) -> PipelineCosts:
    """Returns equal costs for all stages: free transfers, and one byte kept per micro-batch."""
    cost = StageCost(forward, input_gradient, weight_gradient, weight_bytes=1)
    return PipelineCosts((cost,) * stages)
