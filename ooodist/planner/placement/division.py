"""Divides devices among the stages of a pipeline and its replicas: what is best for a step.

A step's micro-batches are divided among the replicas, so that all divisions train on the same::

    8 devices, 16 micro-batches     pipeline 8   replicas 1   16 micro-batches each
                                             4            2    8
                                             2            4    4
                                             1            8    2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ooodist.errors import UserError
from ooodist.planner.pipeline.layer_costs import ModelCosts, with_sharded_optimizer
from ooodist.planner.pipeline.plan import AUTO, PipelinePlan, first_plan, make_plan


@dataclass(frozen=True)
class Division:
    """One way to divide devices.

    Attributes:
        ranks: of each pipeline.
        replicas: the number of pipelines.
        plan: the plan of a pipeline; None if there is none.
        refused: why there is none.
    """

    ranks: int
    replicas: int
    plan: PipelinePlan | None
    refused: str = ""

    @property
    def name(self) -> str:
        """As ``8 x 4``: ranks of a pipeline, and replicas."""
        return f"{self.ranks} x {self.replicas}"


def ways_to_divide(devices: int) -> list[tuple[int, int]]:
    """All pairs of ranks of a pipeline, and replicas, that use every device."""
    return [(devices // data, data) for data in range(1, devices + 1) if devices % data == 0]


def divide(
    costs: ModelCosts,
    devices: int,
    microbatches: int,
    name: str,
    chunks: int | None = None,
    *,
    shard_optimizer: bool = False,
) -> list[Division]:
    """All ways to divide the devices, the fastest step first, those without a plan last.

    With ``auto``, the best known schedule counts; a search for each way would take too long.

    Args:
        costs: the costs of the layers for one micro-batch, which is the same in all ways.
        devices: all that there are.
        microbatches: of all replicas together.
        name: the name of a schedule, or ``auto``; not a file, which is for one number of ranks.
        chunks: stages per rank; None: the schedule's default.
        shard_optimizer: whether replicas divide the optimizer state among each other.
    """
    ways = [
        _planned(
            with_sharded_optimizer(costs, replicas) if shard_optimizer else costs,
            *(ranks, replicas, microbatches, name, chunks),
        )
        for ranks, replicas in ways_to_divide(devices)
    ]
    return sorted(ways, key=_seconds)


def _planned(
    costs: ModelCosts, ranks: int, replicas: int, microbatches: int, name: str, chunks: int | None
) -> Division:
    if microbatches % replicas:
        refused = f"{microbatches} micro-batches cannot be divided among {replicas} replicas"
        return Division(ranks, replicas, None, refused)
    each = microbatches // replicas
    try:
        costs = replace(costs, replicas=replicas)
        if name == AUTO:
            plan = first_plan(costs, ranks, each, chunks)
        else:
            plan = make_plan(costs, ranks, each, name, chunks)
    except UserError as error:
        return Division(ranks, replicas, None, str(error).splitlines()[0])
    return Division(ranks, replicas, plan)


def _seconds(way: Division) -> float:
    return float("inf") if way.plan is None else way.plan.seconds


def described(ways: Sequence[Division], samples: int | None = None) -> str:
    """Says in words what each way promises, in their order.

    Args:
        ways: as :func:`divide` returns them.
        samples: of a step, in all replicas; None if they are not known.
    """
    words = []
    for way in ways:
        if way.plan is None:
            words.append(f"{way.name} cannot be: {way.refused}")
            continue
        seconds = way.plan.seconds
        rate = f" ({samples / seconds:.4g} samples/s)" if samples and seconds else ""
        words.append(f"{way.name}: {seconds * 1e3:.4g} ms a step{rate}")
    return "; ".join(words)
