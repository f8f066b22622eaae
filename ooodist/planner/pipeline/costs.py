"""What the stages of a pipeline cost: seconds and bytes of a micro-batch.

Bytes of a micro-batch on a stage, over time::

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

RECEIVES_AHEAD = 2  # messages for which a rank has a place before they are needed


@dataclass(frozen=True)
class StageCost:
    """Of one stage and one micro-batch; seconds and bytes.

    Attributes:
        forward: F.
        input_gradient: I.
        weight_gradient: W.
        input_bytes: kept from F to the end of I.
        weight_bytes: kept from F to the end of W.
        gradient_bytes: kept from I to the end of W.
        base_bytes: kept all the time: weights, optimizer, accumulated gradients, messages on their
            way, and what an action needs for itself while it runs.
        send_seconds: from the end of F until its output is where the next stage is.
        send_back_seconds: from the end of I until its result is where the stage before is.
        sent_bytes: of the stage's output; the gradient that comes back is as large.
        update: of the optimizer, once a step.
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

    def seconds(self, kind: str) -> float:
        """Of an action of this kind."""
        if kind == FORWARD:
            return self.forward
        if kind == INPUT_GRADIENT:
            return self.input_gradient
        if kind == WEIGHT_GRADIENT:
            return self.weight_gradient
        assert kind == BACKWARD
        return self.input_gradient + self.weight_gradient

    def transfer_seconds(self, kind: str) -> float:
        """From the end of an action of this kind until its result is where the other stage is."""
        return self.send_seconds if kind == FORWARD else self.send_back_seconds

    def saved_bytes(self, kind: str) -> tuple[int, int]:
        """What an action of this kind adds to what is kept, at its begin and at its end."""
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
        """All that a micro-batch may keep here."""
        return self.input_bytes, self.weight_bytes, self.gradient_bytes


@dataclass(frozen=True)
class PipelineCosts:
    """Of all stages, in their order.

    Attributes:
        stages: of each stage.
        memory_limit: bytes that a rank may keep, of all its stages; None: any number.
    """

    stages: tuple[StageCost, ...]
    memory_limit: Bytes | None = None

    def check(self, stages: int) -> None:
        """Raises UserError if these are not the costs of so many stages."""
        if len(self.stages) != stages:
            raise UserError(
                f"the costs are those of {len(self.stages)} stages, the schedule has {stages}: "
                "measure the costs of these stages"
            )


def forward_only(costs: PipelineCosts, first: int) -> PipelineCosts:
    """The costs where the stages before ``first``, the first one that trains, only run forward.

    They take no time for I, W and the update and keep nothing for them, and nobody sends input
    gradients to them. What they keep all the time stays as it was.

    Args:
        costs: where all stages train.
        first: 0: all train; the number of stages: none does.
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
        )
    return replace(costs, stages=tuple(stages))


def equal_stages(
    stages: int, forward: float = 1.0, input_gradient: float = 1.0, weight_gradient: float = 1.0
) -> PipelineCosts:
    """Stages that all cost the same, with no time for transfers; a micro-batch keeps one byte."""
    cost = StageCost(forward, input_gradient, weight_gradient, weight_bytes=1)
    return PipelineCosts((cost,) * stages)
