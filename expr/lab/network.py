"""An emulated network: hosts on one machine, joined by links of a given rate. Linux and root only.

Each host is a network namespace with a network interface ``eth0``, an address and a host name of
its own; a cable (veth pair) leads to a switch (a bridge), which is in a namespace of its own. So
nothing of it is visible in the machine's own network, and vice versa: a process on a host reaches
the other hosts and itself, but neither the machine nor the internet. Everything else is the
machine's: files, memory, processes, GPUs.
"""

import ipaddress
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from expr.lab import cable
from expr.lab.background_job import BackgroundJob
from expr.lab.lab_host import LabHost
from expr.lab.shaping import MTU, parse_delay, parse_rate, segment_bytes, token_bucket
from ooodist.errors import UserError
from ooodist.launcher import environment
from ooodist.launcher.arguments import check_command
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Places

NETWORK = ipaddress.ip_network("10.77.0.0/16")
MOST_HOSTS = 1000  # a bridge has 1023 ports
NAMES = Path("/etc/netns")  # where `ip netns exec` looks for a host's own files in /etc
# Settings that differ between machines, below /proc/sys/net.
SETTINGS = {
    # No automatic IPv6 addresses, nor packets about them.
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
    # The only algorithm that every kernel has and allows in every namespace.
    "ipv4/tcp_congestion_control": "reno",
}
# Engines give up on a peer that is silent for long. Here it may be paused, and the starter notices
# if it dies.
PATIENCE = {
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "86400",
    "OOODIST_HEARTBEAT_SECONDS": "86400",  # of our engine for TensorFlow's collectives
    "PS_HEARTBEAT_TIMEOUT": "0",  # BytePS: no timeout
}


class Lab:
    """Hosts with shaped links: a context manager that removes everything at its end.

    Attributes:
        hosts: in order; worker i of a job runs on ``hosts[i]``.
        cleaner: removes everything, however this process ends.
    """

    def __init__(
        self, num_hosts: int, rate: str, delay: str | None = None, cores: list[int] | None = None
    ) -> None:
        """Describes the lab; it is built when the context is entered.

        Args:
            rate: rate of every link, each way, as ``250Mbit``.
            delay: delay from host to host, as ``1ms``; each packet then costs CPU time (cable.py).
            cores: cores that the hosts are bound to, host i to ``cores[i % len(cores)]``; None: all
                that this process may use.

        Raises:
            UserError: a value is impossible here.
        """
        usable = sorted(os.sched_getaffinity(0))
        if unusable := set(cores or []) - set(usable):
            raise UserError(
                f"cores {sorted(unusable)}: this process may use {usable}; give some of these"
            )
        if not 1 <= num_hosts <= MOST_HOSTS:
            raise UserError(f"{num_hosts} hosts: give a number from 1 to {MOST_HOSTS}")
        self._rate = parse_rate(rate)
        self._delay = None if delay is None else parse_delay(delay)
        given = cores or usable
        name = f"ooodist-{os.getpid()}-{secrets.token_hex(3)}"
        self.hosts = [
            LabHost(
                address=str(NETWORK[index + 1]),
                interface="eth0",
                cores=(given[index % len(given)],),
                name=f"host{index}",
                namespace=f"{name}-host{index}",
            )
            for index in range(num_hosts)
        ]
        self._switch = LabHost(
            address=str(NETWORK[-2]), interface="bridge", name="switch", namespace=f"{name}-switch"
        )
        self.cleaner = Cleaner()
        self._jobs: list[BackgroundJob] = []
        self._carriers: list[subprocess.Popen[bytes]] = []  # processes of cables with a delay

    @property
    def cores(self) -> list[int]:
        """The cores that the hosts are bound to, each once."""
        return sorted({core for host in self.hosts for core in host.cores})

    def places(self, num_servers: int | None = None) -> Places:
        """Places the processes of a job: a worker on each host, and servers on the hosts in turn.

        Args:
            num_servers: number of BytePS servers; None: one per host.
        """
        servers = len(self.hosts) if num_servers is None else num_servers
        return Places(
            workers=self.hosts,
            servers=[self.hosts[index % len(self.hosts)] for index in range(servers)],
            launcher=self._switch,
        )

    def start(
        self,
        engine: str,
        command: list[str],
        log_folder: Path,
        variables: Mapping[str, str] | None = None,
        num_servers: int | None = None,
    ) -> BackgroundJob:
        """Starts a job with a worker on each host, and returns without waiting for it.

        Args:
            engine: ``collective``, ``horovod`` or ``byteps``.
            command: what each worker runs.
            log_folder: gets a file with the output of each process.
            variables: environment variables, besides those of this process and of the engine.
            num_servers: number of BytePS servers; None: one per host.

        Raises:
            UserError: the engine is not installed, or the command not found.
        """
        resources = ExitStack()
        try:
            check_command(command)
            places = self.places(num_servers)
            processes = environment.processes(engine, command, places, self.cleaner, resources)
        except BaseException:
            resources.close()
            raise
        own = {**PATIENCE, **(variables or {})}
        processes = [replace(each, environment=each.environment | own) for each in processes]
        job = BackgroundJob(processes, self.cleaner, log_folder, resources)
        self._jobs.append(job)
        return job

    def set_rate(self, rate: str) -> None:
        """Changes the rate of every link, each way, at once. Raises UserError."""
        self._rate = parse_rate(rate)
        for host in self.hosts:
            self._shape(host, "change")

    def __enter__(self) -> Self:
        _check_machine()
        self.cleaner.__enter__()
        try:
            self._build()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for job in self._jobs:
                job.end()
        finally:
            self._clear()

    def _clear(self) -> None:
        self.cleaner.__exit__()
        for carrier in self._carriers:
            carrier.wait()  # the cleaner has killed it

    def _build(self) -> None:
        switch = self._switch
        self._add_namespace(switch)
        self._ip(switch, "link", "add", switch.interface, "mtu", str(MTU), "type", "bridge")
        self._address(switch)
        for host in self.hosts:
            self._add_namespace(host)
            self._write_names(host)
            if self._delay is None:
                self._join(host)
            else:
                self._join_with_delay(host, self._delay)
            self._ip(switch, "link", "set", host.name, "master", switch.interface, "up")
            self._address(host)
            self._shape(host, "add")

    def _add_namespace(self, host: LabHost) -> None:
        host.remove_after(self.cleaner)
        self._run("ip", "netns", "add", host.namespace)
        with host.inside():
            for setting, value in SETTINGS.items():
                path = Path("/proc/sys/net", setting)
                if path.exists():
                    path.write_text(value)
        self._ip(host, "link", "set", "lo", "up")

    def _write_names(self, host: LabHost) -> None:
        folder = NAMES / host.namespace
        self.cleaner.add_folder(folder)
        folder.mkdir(parents=True)
        lines = ["127.0.0.1 localhost", *(f"{other.address} {other.name}" for other in self.hosts)]
        (folder / "hosts").write_text("\n".join(lines) + "\n")

    def _address(self, host: LabHost) -> None:
        self._ip(host, "addr", "add", f"{host.address}/{NETWORK.prefixlen}", "dev", host.interface)
        self._ip(host, "link", "set", host.interface, "up")

    def _shape(self, host: LabHost, action: str) -> None:
        size = str(segment_bytes(self._rate))
        for end, device in ((host, host.interface), (self._switch, host.name)):
            self._ip(end, "link", "set", device, "gso_max_size", size)
            self._tc(end, action, device, "root", "handle", "1:", *token_bucket(self._rate))

    def _join(self, host: LabHost) -> None:
        """Connects the host to the switch by a cable, whose switch end has the host's name."""
        kind = ["mtu", str(MTU), "type", "veth", "peer", "name", host.interface]
        end = ["mtu", str(MTU), "netns", host.namespace]
        self._ip(self._switch, "link", "add", host.name, *kind, *end)

    def _join_with_delay(self, host: LabHost, delay: float) -> None:
        """Connects the host by a cable that delays what it sends; ``delay`` is in seconds."""
        ends = []
        try:
            for place, interface in ((host, host.interface), (self._switch, host.name)):
                with place.inside():
                    ends.append(cable.new_end(interface))
                self._ip(place, "link", "set", interface, "mtu", str(MTU), "up")
            command = [sys.executable, "-I", "-S", cable.__file__, *map(str, ends), f"{delay:f}"]
            self._carriers.append(
                self.cleaner.popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=ends
                )
            )
        except OSError as error:
            raise UserError(
                f"delay {delay:g} s: packets cannot be delayed here ({error}); it needs "
                "/dev/net/tun (in a container: --device /dev/net/tun), or leave the delay out"
            ) from error
        finally:
            for end in ends:
                os.close(end)

    def _ip(self, host: LabHost, *arguments: str) -> None:
        self._run("ip", "-n", host.namespace, *arguments)

    def _tc(self, host: LabHost, action: str, device: str, *arguments: str) -> None:
        self._run("tc", "-n", host.namespace, "qdisc", action, "dev", device, *arguments)

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            start_new_session=True,  # protects it from Ctrl-C
            pass_fds=[self.cleaner.fileno()],  # the cleaner waits until this has ended
        )
        if done.returncode != 0:
            raise UserError(
                f"`{' '.join(command)}` failed: {' '.join(done.stderr.split())}; the emulated "
                "network needs the rights to change networks (in a container: --privileged)"
            )


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise UserError(
            "the emulated network needs root: run this with sudo, or use python -m "
            "ooodist.launch, which does not"
        )
    missing = [tool for tool in ("ip", "tc", "unshare", "taskset") if shutil.which(tool) is None]
    if missing:
        raise UserError(
            f"the emulated network needs {' and '.join(missing)}, not found on PATH: run "
            "apt-get install iproute2 util-linux"
        )
