"""Hosts with several devices, and where the ranks of a pipeline and its replicas run on them.

Each host takes ``positions x replicas`` ranks: some positions of the pipeline, and the same of some
replicas. With two hosts of four devices, and two replicas of a pipeline of four ranks::

    replica 0   0 1 2 3   host 0         replica 0   0 1 | 2 3
    replica 1   0 1 2 3   host 1         replica 1   0 1 | 2 3
                                               host 0      host 1

    a pipeline stays inside a host       replicas stay inside a host
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ooodist.planner.pipeline.layer_costs import Link, ModelCosts


@dataclass(frozen=True)
class Hosts:
    """Hosts that are alike.

    Attributes:
        number: how many there are.
        devices: devices of each.
        inside: the link between two devices of a host.
        between: the link of a host to the others, which its devices share.
    """

    number: int
    devices: int
    inside: Link
    between: Link


@dataclass(frozen=True)
class Placement:
    """Which rank runs on which host; the same for all replicas.

    Attributes:
        groups: for each position of a pipeline, the number of its group; a host has one group, and
            all groups are of one size.
        replicas: the number of replicas whose ranks a host has.
    """

    groups: tuple[int, ...]
    replicas: int

    def host(self, replica: int, position: int) -> int:
        """The host of a rank."""
        return replica // self.replicas * (max(self.groups) + 1) + self.groups[position]

    def costs(self, costs: ModelCosts, hosts: Hosts) -> ModelCosts:
        """The costs with the links that this placement gives to pipelines and replicas.

        Ranks of a host that send to another at the same time share its link evenly: replicas send
        the same messages, and all positions sum their gradients at the end of a step.
        """
        to_others = _shared(hosts.between, self.replicas)
        links = tuple(
            tuple(hosts.inside if here == there else to_others for there in self.groups)
            for here in self.groups
        )
        positions = hosts.devices // self.replicas
        is_inside = costs.replicas <= self.replicas
        ring = hosts.inside if is_inside else _shared(hosts.between, positions)
        return replace(costs, link=hosts.between, links=links, replica_link=ring)

    def crossings(self, pairs: Sequence[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        """Those pairs of positions that are on different hosts."""
        return frozenset(pair for pair in pairs if self.groups[pair[0]] != self.groups[pair[1]])


def _shared(link: Link, number: int) -> Link:
    return replace(link, seconds_per_byte=link.seconds_per_byte * number)
