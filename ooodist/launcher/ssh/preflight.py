"""Before a job starts on several hosts: they answer, and have the same of all that matters."""

import json
import math
import os
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import IO

from ooodist.engines.heartbeat import heartbeat_seconds
from ooodist.engines.kinds import find, kinds
from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.host import ipv4_address
from ooodist.launcher.ssh.host import SshHost
from ooodist.launcher.ssh.keeper import Facts, Request

ANSWER_SECONDS = 60.0  # a Python on a slow network disk takes long to start
_LONGEST_ANSWER = 1 << 20  # bytes


def ssh_options() -> tuple[str, ...]:
    """Options for ssh: no questions, and an end when a host is silent for too long.

    That is six intervals after its last answer, which is at most one older than its silence: 1 to
    1.2 times the limit of heartbeats.
    """
    interval = math.ceil(heartbeat_seconds(os.environ) / 5)
    return (
        *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
        *("-o", f"ServerAliveInterval={interval}", "-o", "ServerAliveCountMax=5"),
    )


@dataclass(frozen=True)
class Way:
    """How to reach hosts: the ssh command, and where Python and the job's folder are on each."""

    ssh: tuple[str, ...] = ("ssh",)
    python: str = sys.executable
    folder: Path = Path()

    def start(self, module: str, host: str, address: str, sockets: Path) -> tuple[str, ...]:
        """The command that runs a module of ooodist on a host.

        Args:
            module: its name.
            host: where; its shell begins in the home folder.
            address: of the host.
            sockets: a folder of this machine, in which ssh keeps one connection for each host.
        """
        search = os.environ.get("PYTHONPATH")
        variables = f"PYTHONPATH={shlex.quote(search)} " if search else ""
        line = (
            f"cd {shlex.quote(str(self.folder))} && {variables}exec {shlex.quote(self.python)} "
            f"-m ooodist.launcher.ssh.{module}"
        )
        if is_own(address):
            return ("sh", "-c", line)
        shared = ("-o", "ControlMaster=auto", "-o", f"ControlPath={sockets}/%C")
        return (*self.ssh, *ssh_options(), *shared, "--", host, line)


@dataclass
class _Keeper:
    """A keeper that has been started."""

    name: str  # as listed
    address: str
    popen: subprocess.Popen[bytes]
    requests: IO[bytes]
    answers: IO[bytes]
    errors: IO[bytes]

    def complaint(self) -> str:
        """The last line that it or ssh has written to standard error."""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def meet(
    hosts: Mapping[str, int],
    way: Way,
    engine: str,
    command: list[str],
    cleaner: Cleaner,
    resources: ExitStack,
) -> tuple[dict[str, SshHost], list[str]]:
    """Starts a keeper on each host, on all at the same time.

    Args:
        hosts: how many processes each is to take.
        way: how to reach them.
        engine: of the job.
        command: of its workers.
        cleaner: ends the keepers.
        resources: the same, in their own time.

    Returns:
        the hosts that answer and agree, by their names in the list, and what keeps the others out:
        a message for each.

    Raises:
        UserError: those that answer differ in something that matters.
    """
    if shutil.which(way.ssh[0]) is None:
        raise UserError(f"--ssh {way.ssh[0]}: not found; run apt-get install openssh-client")
    sockets = cleaner.new_folder()
    out: list[str] = []
    keepers = []
    for name in hosts:
        try:
            keepers.append(_start(name, way, sockets, cleaner, resources))
        except OSError as error:
            out.append(
                f"host {name}: its name does not resolve here to an IPv4 address ({error.strerror})"
            )
    words = [part for word in command for part in {word, word.rpartition("=")[2]}]
    # os.path, as words may be too long for a path, which Path takes for an error.
    files = [word for word in words if os.path.isfile(way.folder / word)]
    for keeper in keepers:
        ports = hosts[keeper.name] + 1  # one more for BytePS's scheduler
        search_path = os.environ.get("PATH", os.defpath)
        request = Request(keeper.address, engine, command[0], search_path, files, ports)
        with suppress(BrokenPipeError):  # then there will be no answer, and a reason
            keeper.requests.write(json.dumps(asdict(request)).encode() + b"\n")
    answers: list[tuple[_Keeper, Facts]] = []
    deadline = time.monotonic() + ANSWER_SECONDS
    for keeper in keepers:
        facts = _answer(keeper, deadline)
        if isinstance(facts, Facts):
            answers.append((keeper, facts))
        else:
            out.append(facts)
    _check([(keeper.name, facts) for keeper, facts in answers], engine, command[0])
    _check_addresses([(keeper.name, keeper.address) for keeper, _ in answers])
    found = {
        keeper.name: SshHost(
            address=keeper.address,
            interface=facts.interface,
            name=_without_user(keeper.name),
            python=way.python,
            runner=way.start("runner", keeper.name, keeper.address, sockets),
            facts=facts,
            keeper=keeper.requests.fileno(),
        )
        for keeper, facts in answers
    }
    return found, out


def _without_user(name: str) -> str:
    return name.rpartition("@")[2]


def _start(name: str, way: Way, sockets: Path, cleaner: Cleaner, resources: ExitStack) -> _Keeper:
    address = ipv4_address(_without_user(name))
    errors = resources.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    popen = cleaner.popen(
        list(way.start("keeper", name, address, sockets)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        bufsize=0,
    )
    assert popen.stdin
    assert popen.stdout
    keeper = _Keeper(name, address, popen, popen.stdin, popen.stdout, errors)
    resources.callback(_end, keeper, cleaner)
    return keeper


def _end(keeper: _Keeper, cleaner: Cleaner) -> None:
    """Lets the keeper clean up, and waits for that."""
    keeper.requests.close()
    try:
        keeper.popen.wait(timeout=10)
    except subprocess.TimeoutExpired:
        keeper.popen.kill()
        keeper.popen.wait()
    cleaner.forget_group(keeper.popen.pid)
    keeper.answers.close()


def _answer(keeper: _Keeper, deadline: float) -> Facts | str:
    """What the keeper says, or a message why it says nothing."""
    if not select.select([keeper.answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
        return f"host {keeper.name}: no answer within {ANSWER_SECONDS:g} s"
    data = keeper.answers.readline(_LONGEST_ANSWER)  # a host that breaks off ends its ssh
    if not data.endswith(b"\n"):
        return f"host {keeper.name}: {keeper.complaint()}"
    try:
        return Facts(**json.loads(data))
    except (ValueError, TypeError):
        return (
            f"host {keeper.name}: {data[:200]!r} is no answer of ooodist; let the shell's "
            "start-up files print nothing"
        )


def _check(answers: list[tuple[str, Facts]], engine: str, program: str) -> None:
    """Raises UserError if a host lacks something, or has another one than the first host."""
    for name, facts in answers:
        for lack in _lacks(facts, engine, program):
            raise UserError(f"host {name} {lack}")
    _check_equal([(name, facts.versions) for name, facts in answers], "install the same on both")
    _check_equal(
        [
            (name, {path: f"SHA-256 {digest[:12]}" for path, digest in facts.files.items()})
            for name, facts in answers
        ],
        "copy it from one to the other, or use a disk that all see",
    )


def _lacks(facts: Facts, engine: str, program: str) -> Iterator[str]:
    """What a host lacks, and how to put it right."""
    for package, version in facts.versions.items():
        if not version:
            is_ours = package in ("TensorFlow", "Keras")
            how = 'pip install "ooodist[cpu]"' if is_ours else f"ooodist-engines {engine}"
            yield f"has no {package}; install it there ({how}), or give another Python (--python)"
    if not facts.program:
        yield f"has no program {program}; install it there, or give its full path"
    if not facts.interface:
        yield (
            "has no network interface with the address to which its name resolves here; correct "
            "the name in DNS or /etc/hosts"
        )
    listens = engine in kinds() and find(engine).listens_at_own_name
    if listens and facts.own_address.startswith("127."):
        yield (
            f"resolves its own name, {facts.own_name}, to {facts.own_address}, which {engine} "
            "would listen at; give it its network address in /etc/hosts there"
        )
    for path, digest in facts.files.items():
        if not digest:
            yield f"has no file {path}; copy it there, or use a disk that all see"


def _check_equal(found: list[tuple[str, dict[str, str]]], way_out: str) -> None:
    for name, values in found[1:]:
        first, expected = found[0]
        for what, value in expected.items():
            if values[what] != value:
                raise UserError(
                    f"{what} differs: host {first} has {value}, host {name} has {values[what]}; "
                    f"{way_out}"
                )


def _check_addresses(addresses: list[tuple[str, str]]) -> None:
    """Raises UserError if some hosts could not reach others under these addresses."""
    for name, address in addresses:
        if address.startswith("127.") and len(addresses) > 1:
            raise UserError(
                f"host {name} resolves to {address} here, where no other host can reach it; name "
                "its network address, or correct /etc/hosts"
            )
    for (name, address), (other, same) in combinations(addresses, 2):
        if address == same:
            raise UserError(
                f"hosts {name} and {other} are the same ({address}); name it once, with all its "
                "workers"
            )


def is_own(address: str) -> bool:
    """Whether an address is one of this machine."""
    with socket.socket() as own:
        try:
            own.bind((address, 0))
        except OSError:
            return False
    return True


def own_address(other: str) -> str:
    """The address of this machine from which it reaches another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        any_socket.connect((other, 9))  # sends nothing
        return str(any_socket.getsockname()[0])
