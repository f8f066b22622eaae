"""Places ranks on a grid: one pipeline after the other, each from its first stage on.

::

    rank       0  1  2  3    4  5  6  7        pipeline 4, data 2
    replica    0  0  0  0    1  1  1  1
    position   0  1  2  3    0  1  2  3        0 and 4 have the same stages: they are peers
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ooodist.errors import UserError

if TYPE_CHECKING:
    from ooodist.engines.communicator import Communicator


@dataclass(frozen=True)
class Ranks:
    """The position of this rank, and the communicators it is in.

    Attributes:
        world: all ranks.
        pipeline: the ranks of this rank's pipeline, in the order of their positions.
        peers: the ranks with this rank's position, in the order of their pipelines.
        replica, replicas: index of this pipeline, and how many there are.
    """

    world: Communicator
    pipeline: Communicator
    peers: Communicator
    replica: int
    replicas: int

    @property
    def position(self) -> int:
        """This rank's position in its pipeline."""
        return self.pipeline.rank

    @property
    def positions(self) -> int:
        """The number of ranks of a pipeline."""
        return self.pipeline.size

    def at_same_position(self, ranks: Sequence[int]) -> list[int]:
        """Those of some ranks that have the same position as the first of them."""
        first = ranks[0] % self.positions
        return [rank for rank in ranks if rank % self.positions == first]

    def those_at(self, positions: Iterable[int]) -> Communicator:
        """The ranks at these positions of all pipelines; on other ranks, all others.

        All ranks call it with the same positions.
        """
        return self.world.split(int(self.position in set(positions)))


def make_ranks(world: Communicator, pipeline: int, data: int) -> Ranks:
    """Places all ranks on a grid of pipelines times stages.

    Args:
        world: of all ranks.
        pipeline: ranks per pipeline.
        data: number of pipelines.

    Raises:
        UserError: the number of ranks that were started is not pipeline x data.
    """
    check_started(world.size, pipeline, data)
    replica, position = divmod(world.rank, pipeline)
    return Ranks(world, world.split(replica), world.split(position), replica, data)


def check_started(size: int, pipeline: int, data: int) -> None:
    """Raises UserError unless pipeline x data ranks were started."""
    wanted = pipeline * data
    if size != wanted:
        raise UserError(
            f"parallel is pipeline {pipeline} x data {data}, which is {wanted} processes, but "
            f"{size} {'was' if size == 1 else 'were'} started; start {wanted}, as mpirun -np "
            f"{wanted} python -m ooodist.train …, or change parallel.pipeline and parallel.data"
        )
