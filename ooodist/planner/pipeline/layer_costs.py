"""The cost model of a model's layers, from which pipeline stages are made.

Costs are measured by ``ooodist.pipeline.layers``, or written by hand for a machine not at hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

from ooodist.errors import UserError
from ooodist.planner.costs import Bytes, Seconds
from ooodist.planner.pipeline.costs import (
    LacksMemory,
    PipelineCosts,
    StageCost,
    bucket_bytes,
)
from ooodist.planner.pipeline.partition import partition, smallest_parts
from ooodist.util import yaml_dataclass
from ooodist.util.yaml_dataclass import Range


@dataclass(frozen=True)
class LayerCost:
    """The cost of one micro-batch on one layer, or on several that stay together.

    Attributes:
        name: the name of the (first) layer.
        forward, input_gradient, weight_gradient: seconds of F, I and W.
        update: seconds of the optimizer, once per step.
        base_bytes: bytes kept all the time: weights, optimizer state, accumulated gradients. Those
            of a weight that several layers share are of the first one.
        state_bytes: of ``base_bytes``, those of weights and optimizer state; only messages tell
            them apart.
        input_bytes: bytes kept from F to the end of I.
        weight_bytes: bytes kept from F to the end of W.
        gradient_bytes: bytes kept from I to the end of W.
        sent_bytes: bytes of all tensors made up to this layer and needed after it: what is sent
            if a stage ends here. The gradient that comes back is as large.
        exchanged_bytes: bytes of the gradients of the weights, as replicas of the pipeline sum them
            once per step; not needed without replicas.
        optimizer_bytes: of ``state_bytes``, those of optimizer state, which replicas can divide
            among each other; see :func:`sharded`.
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
    state_bytes: Bytes = 0
    exchanged_bytes: Bytes = 0
    optimizer_bytes: Bytes = 0

    @property
    def seconds(self) -> float:
        """The seconds of F, I and W together."""
        return self.forward + self.input_gradient + self.weight_gradient

    @property
    def saved_bytes(self) -> int:
        """The bytes that each micro-batch in flight keeps here; ``gradient_bytes`` come on top for
        one micro-batch at a time, unless W is delayed."""
        return self.input_bytes + self.weight_bytes


@dataclass(frozen=True)
class Link:
    """A link from one rank to another.

    Attributes:
        latency: seconds that a message takes, however small.
        seconds_per_byte: seconds that each byte adds.
    """

    latency: Seconds = 0.0
    seconds_per_byte: Seconds = 0.0

    def seconds(self, num_bytes: int) -> float:
        """The seconds that a message of this size takes."""
        return self.latency + num_bytes * self.seconds_per_byte

    def all_reduce_seconds(self, num_bytes: int, members: int) -> float:
        """The seconds of summing so many bytes over the members of a ring of such links.

        Each member sends its n-th part 2 (n - 1) times: Patarasuk and Yuan, "Bandwidth optimal
        all-reduce algorithms for clusters of workstations", JPDC 2009. Tensors that are summed at
        the same time share the latency.
        """
        if not num_bytes:
            return 0.0
        trips = 2 * (members - 1)
        return trips * (self.latency + num_bytes / members * self.seconds_per_byte)


@dataclass(frozen=True)
class ModelCosts:
    """The costs of a model that is to be split into stages.

    Attributes:
        layers: the cost of each layer, in order.
        link: the link between ranks.
        memory_limit: bytes that a rank may keep; None: no limit.
        recompute: whether stages keep only the inputs they received, and I runs F again.
        replicas: the number of such pipelines, which train on different samples.
        replica_link: the link between the ranks that have the same stages; None: as ``link``.
        links: where links differ, ``links[a][b]`` is that from rank a to rank b of a pipeline;
            None: all are as ``link``.
        has_barrier: whether ranks wait for each other at the end of each step; see
            :class:`ooodist.planner.pipeline.costs.PipelineCosts`.

    Raises:
        UserError: there are replicas, but no layer has ``exchanged_bytes``.
    """

    layers: tuple[LayerCost, ...]
    link: Link = Link()
    memory_limit: Bytes | None = None
    recompute: bool = False
    replicas: Annotated[int, Range(1)] = 1
    replica_link: Link | None = None
    links: tuple[tuple[Link, ...], ...] | None = None
    has_barrier: bool = True

    def __post_init__(self) -> None:
        if self.replicas > 1 and not any(layer.exchanged_bytes for layer in self.layers):
            raise UserError(
                f"{self.replicas} replicas of a pipeline sum the gradients of its layers, but no "
                "layer has exchanged_bytes; measure the costs anew, add the bytes of its weights' "
                "gradients to each layer, as exchanged_bytes: 4096, or plan without --data"
            )

    def link_between(self, source: int, target: int) -> Link:
        """The link from one rank of a pipeline to another."""
        return self.link if self.links is None else self.links[source][target]

    def check_links(self, ranks: int) -> None:
        """Raises UserError unless ``links``, if given, are those of so many ranks."""
        if self.links is not None and {len(self.links), *map(len, self.links)} != {ranks}:
            sizes = " ".join(str(len(row)) for row in self.links)
            raise UserError(
                f"links has {len(self.links)} rows, with {sizes} links each, but the pipeline has "
                f"{ranks} ranks; give {ranks} rows of {ranks} links, or leave links out"
            )


def read_model_costs(file: Path, option: str = "--costs") -> ModelCosts:
    """Reads costs from a YAML file. Raises UserError, which names the option for the file."""
    return yaml_dataclass.read_file(ModelCosts, file, option)


def merged(layers: Sequence[LayerCost], parts: Sequence[range]) -> tuple[LayerCost, ...]:
    """Merges the layers of each part into one, which no stage boundary divides."""

    def one(those: Sequence[LayerCost]) -> LayerCost:
        total = {
            field.name: sum(getattr(layer, field.name) for layer in those)
            for field in fields(LayerCost)
            if field.name not in ("name", "sent_bytes")
        }
        return LayerCost(name=those[0].name, sent_bytes=those[-1].sent_bytes, **total)

    return tuple(one(layers[part.start : part.stop]) for part in parts)


def with_sharded_optimizer(costs: ModelCosts, replicas: int) -> ModelCosts:
    """The costs of layers whose optimizer state replicas divide; see :func:`sharded`."""
    return replace(costs, layers=tuple(sharded(layer, replicas) for layer in costs.layers))


def sharded(layer: LayerCost, replicas: int) -> LayerCost:
    """The cost with the optimizer state divided among replicas, as if evenly.

    Whole weights are divided (``parallel.shard_optimizer``): the true share of a rank is known once
    its stages are.
    """
    saved = layer.optimizer_bytes - -(-layer.optimizer_bytes // replicas)
    return replace(
        layer,
        base_bytes=layer.base_bytes - saved,
        state_bytes=layer.state_bytes - saved,
        optimizer_bytes=layer.optimizer_bytes - saved,
    )


def _recomputed(layer: LayerCost) -> LayerCost:
    """The cost with F run again in I; what W needs is then kept from I to W only."""
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
    """Splits into ``ranks * chunks`` stages whose slowest stage is as fast as possible.

    How many bytes a schedule keeps is known only once it is made. So with a memory limit there are
    several candidates: a split (if any) in which each stage, with as many micro-batches in flight
    as in 1F1B, stays within its share of its rank's limit, and the split that ignores the limit.
    Without the former, there are also the fastest split into which one micro-batch fits, and the
    one that needs least memory for it.

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
    share = costs.memory_limit // chunks
    in_flight = [min(microbatches, ranks - stage % ranks) for stage in range(stages)]
    try:
        within = partition(with_gradients, stages, in_flight=in_flight, memory_limit=share)
        return list(dict.fromkeys([within, free]))
    except LacksMemory:
        pass
    smallest = smallest_parts(with_gradients, stages)
    try:
        one = partition(with_gradients, stages, memory_limit=share)
    except LacksMemory:
        one = smallest
    return list(dict.fromkeys([one, free, smallest]))


def stage_costs(
    costs: ModelCosts, parts: Sequence[range], rank_of: Sequence[int] | None = None
) -> PipelineCosts:
    """The costs of stages.

    Args:
        costs: the costs of the layers.
        parts: the layers of each stage.
        rank_of: the rank of each stage; None: one stage per rank.

    Raises:
        UserError: ``costs.links`` are those of another number of ranks.
    """
    rank_of = rank_of or range(len(parts))
    costs.check_links(max(rank_of) + 1)
    ring = costs.replica_link or costs.link
    ways = list(itertools.pairwise(rank_of))
    to_next = [*(costs.link_between(*way) for way in ways), Link()]
    to_previous = [Link(), *(costs.link_between(there, here) for here, there in ways)]

    def cost(part: range, layer: LayerCost, there: Link, back: Link) -> StageCost:
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
            state_bytes=layer.state_bytes,
            sent_bytes=sent,
            send_seconds=there.seconds(sent) if sent else 0.0,
            send_back_seconds=back.seconds(received) if received else 0.0,
            exchange=ring.all_reduce_seconds(layer.exchanged_bytes, costs.replicas),
            buckets=max(1, layer.exchanged_bytes // bucket_bytes(layer.exchanged_bytes)),
        )

    stages = map(cost, parts, merged(costs.layers, parts), to_next, to_previous)
    return PipelineCosts(tuple(stages), costs.memory_limit, costs.has_barrier)
