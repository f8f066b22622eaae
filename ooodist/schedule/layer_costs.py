"""What the layers of a model cost, from which stages of a pipeline are made.

Measured by ``ooodist.pipeline.measure``, or described by hand for a machine that one does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ooodist import yaml_dataclass
from ooodist.errors import UserError
from ooodist.schedule.partition import partition
from ooodist.schedule.pipeline_costs import PipelineCosts, StageCost
from ooodist.yaml_dataclass import Range

Seconds = Annotated[float, Range(0)]
Bytes = Annotated[int, Range(0)]


@dataclass(frozen=True)
class LayerCost:
    """Of one layer, or of several that stay together; for one micro-batch.

    Attributes:
        name: of the layer.
        forward, input_gradient, weight_gradient: seconds of F, B and W.
        update: seconds of the optimiser, once a step.
        base_bytes: kept all the time: weights, optimiser, accumulated gradients.
        input_bytes: kept from F to the end of B.
        weight_bytes: kept from F to the end of W.
        gradient_bytes: kept from B to the end of W.
        sent_bytes: of all tensors made by this layer or before it, and needed behind it: what is
            sent if a stage ends here. The gradient that comes back is as large.
    """

    name: str
    forward: Seconds = 0.0
    input_gradient: Seconds = 0.0
    weight_gradient: Seconds = 0.0
    update: Seconds = 0.0
    base_bytes: Bytes = 0
    input_bytes: Bytes = 0
    weight_bytes: Bytes = 0
    gradient_bytes: Bytes = 0
    sent_bytes: Bytes = 0

    @property
    def seconds(self) -> float:
        """Of F, B and W."""
        return self.forward + self.input_gradient + self.weight_gradient

    @property
    def kept_bytes(self) -> int:
        """What each micro-batch in flight keeps here; one at a time has ``gradient_bytes``
        besides, unless its W waits."""
        return self.input_bytes + self.weight_bytes


@dataclass(frozen=True)
class Link:
    """From one rank to another.

    Attributes:
        latency: seconds that a message takes, however small.
        seconds_per_byte: what each byte adds.
    """

    latency: Seconds = 0.0
    seconds_per_byte: Seconds = 0.0

    def seconds(self, num_bytes: int) -> float:
        """Of a message."""
        return self.latency + num_bytes * self.seconds_per_byte


@dataclass(frozen=True)
class ModelCosts:
    """Of a model that is to be split into stages.

    Attributes:
        layers: in their order.
        link: between neighbouring ranks.
        memory_limit: bytes that a rank may keep; None: any number.
    """

    layers: tuple[LayerCost, ...]
    link: Link = Link()
    memory_limit: Bytes | None = None


def read_model_costs(file: Path, option: str = "--costs") -> ModelCosts:
    """The costs of a YAML file. Raises UserError, which names the option that gave the file."""
    costs: ModelCosts = yaml_dataclass.read_file(ModelCosts, file, option)
    return costs


def balanced_parts(
    costs: ModelCosts, ranks: int, chunks: int, microbatches: int
) -> list[tuple[range, ...]]:
    """The layers of each of ``ranks * chunks`` stages, the slowest stage as fast as it can be.

    What a schedule keeps is known only when it is made. So with a memory limit there are two ways
    to try: one in which each stage keeps to its rank's share of the limit with as many
    micro-batches in flight as 1F1B has there, if there is one; and the one without a limit.

    Raises:
        UserError: there are fewer layers than stages.
    """
    stages = ranks * chunks
    free = partition(costs.layers, stages)
    if costs.memory_limit is None:
        return [free]
    with_gradients = [
        replace(layer, base_bytes=layer.base_bytes + layer.gradient_bytes) for layer in costs.layers
    ]
    try:
        within = partition(
            with_gradients,
            stages,
            in_flight=[min(microbatches, ranks - stage % ranks) for stage in range(stages)],
            memory_limit=costs.memory_limit // chunks,
        )
    except UserError:
        return [free]
    return [within] if within == free else [within, free]


def stage_costs(costs: ModelCosts, parts: Sequence[range]) -> PipelineCosts:
    """Of the stages that these parts of the layers make."""

    def cost(part: range) -> StageCost:
        layers = costs.layers[part.start : part.stop]
        sent = layers[-1].sent_bytes if part.stop < len(costs.layers) else 0
        received = costs.layers[part.start - 1].sent_bytes if part.start else 0
        return StageCost(
            forward=sum(layer.forward for layer in layers),
            input_gradient=sum(layer.input_gradient for layer in layers),
            weight_gradient=sum(layer.weight_gradient for layer in layers),
            update=sum(layer.update for layer in layers),
            input_bytes=sum(layer.input_bytes for layer in layers),
            weight_bytes=sum(layer.weight_bytes for layer in layers),
            gradient_bytes=sum(layer.gradient_bytes for layer in layers),
            base_bytes=sum(layer.base_bytes for layer in layers),
            sent_bytes=sent,
            send_seconds=costs.link.seconds(sent) if sent else 0.0,
            send_back_seconds=costs.link.seconds(received) if received else 0.0,
        )

    return PipelineCosts(tuple(map(cost, parts)), costs.memory_limit)
