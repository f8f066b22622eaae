"""What breaks: how it is brought about, and what is expected of the job then."""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from job import CLEAR_SECONDS, ENGINES, ROOT, Job

from expr.lab.network import Lab
from ooodist.checkpoint import folder as folders
from ooodist.errors import UserError
from tests.launcher.ssh.hosts import SEPARATION, SshHosts, on

RATE, SLOW_RATE = "1Gbit", "10Mbit"
DISK_BYTES = 8 << 20
FILLER = "filler"  # what fills the disk
BUSY_LOOPS = 4
STILL_SECONDS = 3.0  # without a checkpoint


@dataclass
class Scene:
    """Where a job runs: on this machine, or on two hosts of an emulated network with an sshd each.

    Attributes:
        folder: for the outputs of the jobs, and for what the fault needs.
        lab, hosts: None on this machine.
    """

    folder: Path
    lab: Lab | None = None
    hosts: SshHosts | None = None

    def job(self, engine: str, output: Path) -> Job:
        """Returns a job of this place, not started."""
        if self.hosts is None:
            return Job(engine, output)
        place = ["--hosts", ",".join(self.hosts.names), "--ssh", self.hosts.ssh]
        return Job(engine, output, place, on(self.hosts.hosts[0]))

    def mount_on_host_1(self, source: Path, target: Path) -> None:
        """Shows ``source`` in the place of ``target`` to what sshd starts on the second host."""
        assert self.hosts is not None
        server = self.hosts.process_id(self.hosts.hosts[1])
        if os.readlink(f"/proc/{server}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            raise UserError("the second host sees the same mounts as this machine; use Linux")
        bind = ["mount", "--bind", str(source), str(target)]
        subprocess.run(["nsenter", "-t", str(server), "-m", *bind], check=True)


@contextmanager
def scene(folder: Path, *, with_hosts: bool) -> Iterator[Scene]:
    """Makes the place of a cell, and removes it."""
    if not with_hosts:
        yield Scene(folder)
        return
    SEPARATION.mkdir(mode=0o755, exist_ok=True)
    keys = folder / "keys"
    keys.mkdir()
    with Lab(2, RATE) as lab:
        hosts = SshHosts(lab, keys)
        try:
            yield Scene(folder, lab, hosts)
        finally:
            hosts.close()


@dataclass(frozen=True)
class Fault:
    """One row of the matrix.

    Attributes:
        what: in words, for the table.
        strike: called when the job has written checkpoints (``at_start``: once it is started); may
            return when something broke, as of time.monotonic, if that was later.
        settings: of the job that fails, besides the usual ones.
        options: of its launcher.
        may_interrupt_writing: whether an incomplete file may be left in the output folder, which
            the next job there removes.
        is_unread: whether its output goes to a full pipe that nobody reads.
        prepare: called before the job starts.
        repair: called after the job; what is then resumed must have the undisturbed weights.
        names: what a message must name, a regular expression.
        most: seconds until the job must have ended; None: no bar but that it ends.
        code: the exit code that is required; None: any but 0.
        engines: for which it exists.
        clear: seconds from the end of the launcher until nothing may be left.
    """

    what: str
    strike: Callable[[Scene, Job], float | None] | None = None
    settings: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    is_unread: bool = False
    may_interrupt_writing: bool = False
    prepare: Callable[[Scene, Path], None] | None = None
    repair: Callable[[Scene, Path], None] | None = None
    names: str = ""
    most: float | None = None
    code: int | None = None
    at_start: bool = False
    is_damage: bool = False
    is_resumed: bool = True
    with_hosts: bool = False
    engines: tuple[str, ...] = field(default=ENGINES)
    clear: float = CLEAR_SECONDS


def _kill(number: int, find: Callable[[Job], int | None]) -> Callable[[Scene, Job], None]:
    def strike(_: Scene, job: Job) -> None:
        victim = find(job)
        if victim is None:
            raise UserError("the process to be hit is not there")
        os.kill(victim, number)

    return strike


def _terminate(_: Scene, job: Job) -> None:
    assert job.process is not None
    job.process.terminate()


def _link_down(place: Scene, _: Job) -> None:
    assert place.lab is not None
    last = place.lab.hosts[1]
    subprocess.run(["ip", "-n", last.namespace, "link", "set", "eth0", "down"], check=True)


def _link_up(place: Scene, _: Path) -> None:
    assert place.lab is not None
    last = place.lab.hosts[1]
    subprocess.run(["ip", "-n", last.namespace, "link", "set", "eth0", "up"], check=True)


def _slow(place: Scene, _: Job) -> None:
    assert place.lab is not None
    place.lab.set_rate(SLOW_RATE)


def _small_disk(_: Scene, output: Path) -> None:
    output.mkdir()
    options = f"size={DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(output)], check=True)


def _fill(_: Scene, job: Job) -> None:
    with (job.output / FILLER).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:  # it is full
            return


def _empty(_: Scene, output: Path) -> None:
    (output / FILLER).unlink()


def _newest_file(output: Path) -> Path:
    """The newest checkpoint; of one in parts, its largest file."""
    path, _ = folders.latest(output)
    if path.is_file():
        return path
    return max((each for each in path.iterdir()), key=lambda each: each.stat().st_size)


def _cut(_: Scene, output: Path) -> None:
    path = _newest_file(output)
    os.truncate(path, path.stat().st_size // 2)


def _flip(_: Scene, output: Path) -> None:
    path = _newest_file(output)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def _remove_newest(_: Scene, output: Path) -> None:
    path, *_ = sorted(
        (each for each in output.glob("checkpoint-*")), key=lambda each: -each.stat().st_mtime
    )
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _other_version(place: Scene, _: Path) -> None:
    other = place.folder / "other"
    shutil.copytree(ROOT / "ooodist", other)
    with (other / "__init__.py").open("a") as file:
        file.write("\n# Another version.\n")
    place.mount_on_host_1(other, ROOT / "ooodist")


def _take_port(_: Scene, job: Job) -> None:
    """Listens at the port of rank 1 (collective) or of the scheduler before these do."""
    role = "scheduler" if "byteps" in str(job.processes()) else "worker"
    found: tuple[int, str, str] | None = None

    def find() -> bool:
        nonlocal found
        for key, each in job.processes().items():
            if role == "worker" and each.get("OOODIST_RANK") == "1" and "TF_CONFIG" in each:
                address = json.loads(each["TF_CONFIG"])["cluster"]["worker"][1]
                found = (key, *address.split(":"))
            if each.get("DMLC_ROLE") in ("scheduler", "worker") and "DMLC_PS_ROOT_PORT" in each:
                found = (key, each["DMLC_PS_ROOT_URI"], each["DMLC_PS_ROOT_PORT"])
        return found is not None

    job.wait_for(find)
    assert found is not None
    key, address, port = found
    with _in_network_of(key):  # at once: another program would start too late
        taken = socket.socket()
    with taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((address, int(port)))
        taken.listen()
        assert job.process is not None
        deadline = time.monotonic() + 50
        while job.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)


@contextmanager
def _in_network_of(process: int) -> Iterator[None]:
    """Makes sockets that this thread opens belong to the network of a process."""
    library = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{process}/ns/net") as other:
        for place in (other, own):
            if library.setns(place.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            if place is other:
                yield


def _file_missing(place: Scene, _: Path) -> None:
    import numpy as np

    folder, empty = place.folder / "data", place.folder / "empty"
    folder.mkdir()
    empty.mkdir()
    np.savez(folder / "data.npz", x=np.zeros((999, 8), "f"), y=np.zeros(999, "i"))
    place.mount_on_host_1(empty, folder)


def _is_rank_1(job: Job) -> int | None:
    return job.rank(1)


def _is_launcher(job: Job) -> int | None:
    return job.process.pid if job.process else None


def _is_mpirun(job: Job) -> int | None:
    for key, each in job.processes().items():
        if Path(each["COMMAND"].split()[0]).name in ("mpirun", "orterun"):
            return key
    return None


def _twice(number: int) -> Callable[[Scene, Job], float]:
    def stands_still(job: Job) -> bool:
        files = [path for _, path in folders.checkpoints(job.output)]
        newest = max((path.stat().st_mtime for path in files if path.exists()), default=math.inf)
        return time.time() - newest > STILL_SECONDS

    def strike(_: Scene, job: Job) -> float:
        assert job.process is not None
        job.wait_for(lambda: stands_still(job))
        job.process.send_signal(number)
        time.sleep(1)
        job.process.send_signal(number)
        return time.monotonic()

    return strike


def _busy(_: Scene, job: Job) -> None:
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(BUSY_LOOPS)]
    try:
        job.wait_for(lambda: False)  # until it has ended
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _second_job(place: Scene, job: Job) -> None:
    assert job.process is not None
    second = place.job("collective", job.output)
    second.start()
    second.end()
    second.left(0)
    job.others.append(second)
    job.process.terminate()  # its code says that it still ran


OWN_DATA = "data={{name: function, function: 'expr.faults.data:{}', num_classes: 3}}"
FAULTS = {
    "kill": Fault(
        "`kill -9` of rank 1", _kill(signal.SIGKILL, _is_rank_1), names="1", most=2, code=137
    ),
    "kill_server": Fault(
        "`kill -9` of the server",
        _kill(signal.SIGKILL, lambda job: job.helper("server")),
        names="server 0",
        most=2,
        engines=("byteps",),
    ),
    "kill_scheduler": Fault(
        "`kill -9` of the scheduler",
        _kill(signal.SIGKILL, lambda job: job.helper("scheduler")),
        names="scheduler",
        most=2,
        engines=("byteps",),
    ),
    "stop": Fault("SIGSTOP of rank 1", _kill(signal.SIGSTOP, _is_rank_1), names="1", most=15),
    "term": Fault("SIGTERM to the launcher", _terminate, names="SIGTERM", most=30, code=143),
    "link_down": Fault(
        "link of host1 down",
        _link_down,
        repair=_link_up,
        names="host1",
        with_hosts=True,
        clear=75,  # nobody reaches the ranks of that host; they end after ``timeout``, 60 s
    ),
    "link_slow": Fault(
        "links at 1 % of their rate", _slow, code=0, is_resumed=False, with_hosts=True
    ),
    "disk_full": Fault(
        "output's disk full", _fill, prepare=_small_disk, repair=_empty, names="No space left"
    ),
    "cut": Fault(
        "newest checkpoint cut short, `--resume`",
        prepare=_cut,
        repair=_remove_newest,
        names="checkpoint-",
        is_damage=True,
    ),
    "flipped": Fault(
        "a byte of it flipped, `--resume`",
        prepare=_flip,
        repair=_remove_newest,
        names="checkpoint-",
        is_damage=True,
    ),
    "version": Fault(
        "another ooodist on host1",
        prepare=_other_version,
        names="ooodist differs: host",
        code=2,
        is_resumed=False,
        with_hosts=True,
        at_start=True,
    ),
    "port": Fault(
        "the port is taken",
        _take_port,
        names="port|Address already in use",
        is_resumed=False,
        at_start=True,
        engines=("collective", "byteps"),  # the others take a free port and listen at once
    ),
    "data_missing": Fault(
        "data missing on host1",
        prepare=_file_missing,
        settings=("data={name: npz, path: FOLDER/data/data.npz}",),
        names="data.npz",
        code=2,
        is_resumed=False,
        with_hosts=True,
        at_start=True,
    ),
    "raise": Fault(
        "rank 1's data raises",
        settings=(OWN_DATA.format("raises"),),
        names="rank 1: data function: a batch cannot be read: ValueError: sample",
        is_resumed=False,
        at_start=True,
    ),
    "nan": Fault(
        "NaN in one rank's data",
        settings=(OWN_DATA.format("is_nan"),),
        names="not finite",
        code=2,
        is_resumed=False,
        at_start=True,
    ),
    "blocked_term": Fault(
        "SIGTERM, and nobody reads the output", _terminate, is_unread=True, most=30, code=143
    ),
    "blocked_timeout": Fault(
        "`--timeout 20`, and nobody reads the output",
        settings=("epochs=10000",),
        options=("--timeout", "20"),
        is_unread=True,
        most=30,
        code=124,
        is_resumed=False,
        at_start=True,
    ),
    **{
        f"second_{name}": Fault(
            f"{shown} twice, and rank 1 stands still",
            _twice(number),
            settings=(OWN_DATA.format("stands_still"),),
            names="a second signal, killed",
            may_interrupt_writing=True,
            most=2,
            code=128 + number,
            is_resumed=False,
        )
        for name, shown, number in (
            ("term", "SIGTERM", signal.SIGTERM),
            ("interrupt", "Ctrl-C", signal.SIGINT),
        )
    },
    "kill_launcher": Fault(
        "`kill -9` of the launcher",
        _kill(signal.SIGKILL, _is_launcher),
        may_interrupt_writing=True,
        most=2,
        code=-9,
    ),
    "kill_mpirun": Fault(
        "`kill -9` of `mpirun`",
        _kill(signal.SIGKILL, _is_mpirun),
        names="mpirun",
        may_interrupt_writing=True,
        most=2,
        code=137,
        engines=("horovod-mpi", "mpi"),
    ),
    "busy": Fault(
        f"{BUSY_LOOPS} busy loops beside it",
        _busy,
        code=0,
        is_resumed=False,
        at_start=True,
        engines=("collective",),
    ),
    "same_output": Fault(
        "a second job in its output folder",
        _second_job,
        settings=("epochs=10000",),
        names=r"another job writes \(.*\d+.* " + socket.gethostname(),
        code=143,
        is_resumed=False,
        engines=("collective",),
    ),
}
