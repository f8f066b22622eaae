"""The addresses at which the hosts of a Slurm step reach each other."""

from __future__ import annotations

import ipaddress

from ooodist.errors import UserError
from ooodist.launcher.host import Host, interface_with, ipv4_address
from ooodist.launcher.slurm.host import TaskHost
from ooodist.launcher.slurm.task import Task


def hosts_of(task: Task) -> list[TaskHost]:
    """All hosts of the step; only of its own and the first one a task knows the address.

    Raises:
        UserError: the name of one of these leads nowhere.
    """
    own = host_of(task)
    root = own.address if task.host == 0 else address_of(task.hosts[0])
    addresses = {task.host: own.address, 0: root}
    return [
        TaskHost(addresses.get(number, ""), own.interface, task=task, number=number)
        for number in range(len(task.hosts))
    ]


def host_of(task: Task) -> Host:
    """The host of a task; on one host alone, everything stays inside of it.

    Raises:
        UserError: the name of the host leads others nowhere.
    """
    if len(task.hosts) == 1:
        return Host()
    name = task.hosts[task.host]
    address = address_of(name)
    if ipaddress.ip_address(address).is_loopback:
        raise UserError(
            f"{name} is {address} on {name} itself, where no other host reaches it; give it its "
            "address in the network in /etc/hosts there"
        )
    return Host(address=address, interface=interface_of(address, name))


def address_of(name: str) -> str:
    """The IPv4 address of a host. Raises UserError if its name has none."""
    try:
        return ipv4_address(name)
    except OSError as error:
        raise UserError(
            f"the host {name} of this Slurm job has no IPv4 address here ({error}); add it to the "
            "network's names or to /etc/hosts of every host"
        ) from error


def interface_of(address: str, name: str) -> str:
    """The network interface of this machine with this address.

    Args:
        address: an IPv4 address.
        name: whose it is, for messages.

    Raises:
        UserError: there is none.
    """
    interface = interface_with(address)
    if not interface:
        raise UserError(
            f"{name} is {address}, which no network interface of this host has; correct its name "
            "in /etc/hosts or in the network's names"
        )
    return interface
