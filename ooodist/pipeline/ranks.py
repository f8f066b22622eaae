"""Which rank has which place: pipelines one after the other, each from its first stage on.

::

    rank       0  1  2  3    4  5  6  7        pipeline 4, data 2
    replica    0  0  0  0    1  1  1  1
    position   0  1  2  3    0  1  2  3        0 and 4 have the same stages: they are peers
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mpi4py import MPI

from ooodist.engines.mpi import MpiEngine
from ooodist.errors import UserError


@dataclass(frozen=True)
class Ranks:
    """The place of this rank, and who is with it.

    Attributes:
        world: all ranks.
        pipeline: the ranks of this one's pipeline, in the order of their positions.
        peers: those at this one's position, in the order of their pipelines.
        replica, replicas: number of this pipeline, and of how many.
    """

    world: MPI.Comm
    pipeline: MPI.Comm
    peers: MPI.Comm
    replica: int
    replicas: int

    @property
    def position(self) -> int:
        """Of this rank in its pipeline."""
        return int(self.pipeline.rank)

    @property
    def positions(self) -> int:
        """Ranks of a pipeline."""
        return int(self.pipeline.size)

    def those_at(self, positions: Iterable[int]) -> MPI.Comm:
        """A communicator of the ranks at these positions of all pipelines; null on the others.

        All ranks call it, with the same positions.
        """
        color = 0 if self.position in set(positions) else MPI.UNDEFINED
        return self.world.Split(color, self.world.rank)


def make_ranks(engine: MpiEngine, pipeline: int, data: int) -> Ranks:
    """Place all ranks on a grid of pipelines times stages.

    Args:
        engine: knows the ranks.
        pipeline: ranks of a pipeline.
        data: pipelines.

    Raises:
        UserError: so many ranks were not started.
    """
    check_started(engine.size, pipeline, data)
    world = engine.world
    replica, position = divmod(engine.rank, pipeline)
    return Ranks(
        world, world.Split(replica, position), world.Split(position, replica), replica, data
    )


def check_started(size: int, pipeline: int, data: int) -> None:
    """Raises UserError unless as many ranks were started as there are places."""
    wanted = pipeline * data
    if size != wanted:
        raise UserError(
            f"parallel is pipeline {pipeline} x data {data}, which is {wanted} processes, but "
            f"{size} {'was' if size == 1 else 'were'} started; start {wanted}, as mpirun -np "
            f"{wanted} python -m ooodist.train …, or change parallel.pipeline and parallel.data"
        )
