"""What the layers of a model cost, from which stages of a pipeline are made.

Measured by ``ooodist.pipeline.measure``, or described by hand for a machine that one does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ooodist.errors import UserError
from ooodist.planner.costs import Bytes, Seconds
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost
from ooodist.planner.pipeline.partition import partition
from ooodist.util import yaml_dataclass


@dataclass(frozen=True)
class LayerCost:
    """Of one layer, or of several that stay together; for one micro-batch.

    Attributes:
        name: of the layer.
        forward, input_gradient, weight_gradient: seconds of F, I and W.
        update: seconds of the optimizer, once a step.
        base_bytes: kept all the time: weights, optimizer, accumulated gradients.
        input_bytes: kept from F to the end of I.
        weight_bytes: kept from F to the end of W.
        gradient_bytes: kept from I to the end of W.
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
        """Of F, I and W."""
        return self.forward + self.input_gradient + self.weight_gradient

    @property
    def saved_bytes(self) -> int:
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
        link: between neighboring ranks.
        memory_limit: bytes that a rank may keep; None: any number.
        recompute: stages keep what they have received, and I runs F again.
    """

    layers: tuple[LayerCost, ...]
    link: Link = Link()
    memory_limit: Bytes | None = None
    recompute: bool = False


def read_model_costs(file: Path, option: str = "--costs") -> ModelCosts:
    """The costs of a YAML file. Raises UserError, which names the option that gave the file."""
    return yaml_dataclass.read_file(ModelCosts, file, option)


def merged(layers: Sequence[LayerCost], parts: Sequence[range]) -> tuple[LayerCost, ...]:
    """The layers of each part as one, which no stage divides."""

    def one(those: Sequence[LayerCost]) -> LayerCost:
        total = {
            field.name: sum(getattr(layer, field.name) for layer in those)
            for field in fields(LayerCost)
            if field.name not in ("name", "sent_bytes")
        }
        return LayerCost(name=those[0].name, sent_bytes=those[-1].sent_bytes, **total)

    return tuple(one(layers[part.start : part.stop]) for part in parts)


def _recomputed(layer: LayerCost) -> LayerCost:
    """What I has made again W may still need later."""
    return replace(
        layer,
        input_gradient=layer.forward + layer.input_gradient,
        input_bytes=0,
        weight_bytes=0,
        gradient_bytes=layer.weight_bytes + layer.gradient_bytes,
    )


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
    layers = tuple(map(_recomputed, costs.layers)) if costs.recompute else costs.layers
    free = partition(layers, stages)
    if costs.memory_limit is None:
        return [free]
    with_gradients = [
        replace(layer, base_bytes=layer.base_bytes + layer.gradient_bytes) for layer in layers
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

    def cost(part: range, layer: LayerCost) -> StageCost:
        sent = layer.sent_bytes if part.stop < len(costs.layers) else 0
        received = costs.layers[part.start - 1].sent_bytes if part.start else 0
        if costs.recompute:
            layer = replace(_recomputed(layer), input_bytes=received)
        return StageCost(
            forward=layer.forward,
            input_gradient=layer.input_gradient,
            weight_gradient=layer.weight_gradient,
            update=layer.update,
            input_bytes=layer.input_bytes,
            weight_bytes=layer.weight_bytes,
            gradient_bytes=layer.gradient_bytes,
            base_bytes=layer.base_bytes,
            sent_bytes=sent,
            send_seconds=costs.link.seconds(sent) if sent else 0.0,
            send_back_seconds=costs.link.seconds(received) if received else 0.0,
        )

    stages = map(cost, parts, merged(costs.layers, parts))
    return PipelineCosts(tuple(stages), costs.memory_limit)
