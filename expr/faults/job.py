"""A job of two workers, small enough that its start takes longest, and what is left of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.parts import Parts

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ("collective", "horovod", "horovod-mpi", "byteps", "mpi")
LONGEST = 120.0  # seconds from the fault to the end of the job, or from its start to the fault
CLEAR_SECONDS = 5.0  # until what is left counts as left behind
SETTINGS = (
    "model={name: mlp, layers: [16], dropout: 0.2}",
    "optimizer={name: adam, learning_rate: 0.01}",
    "batch=32",
    "epochs=14",
    "report.tensorboard=false",
    "checkpoint={every_steps: 8, keep: 2}",
)
PIPELINE = "parallel={pipeline: 2, microbatches: 4, schedule: 1f1b, split: [predictions]}"
# The launcher's own lines, errors, and what mpirun says of a rank.
TELLING = re.compile(
    r".*(\[launch\] (?!the workers have|\d+ workers|TensorFlow's server|mpirun listens)"
    r"|ooodist: error: |ooodist: .*: looking for an earlier one|mpirun noticed "
    r"|  Remote daemon: ).*"
)


class Job:
    """A job that is started by ``python -m ooodist.launch``, with all that belongs to it marked.

    Attributes:
        output: the job's output folder.
        text: after ``end``, what it has printed.
    """

    def __init__(
        self, engine: str, output: Path, place: Sequence[str] = (), before: Sequence[str] = ()
    ) -> None:
        """Describes it; nothing is started.

        Args:
            place: options of the launcher that say where; empty: two workers on this machine.
            before: what puts the launcher on a host of an emulated network.
        """
        self.output = output
        self.text = ""
        self._engine = engine
        self._place = list(place) or ["-np", "2"]
        self._before = list(before)
        self._mark = uuid.uuid4().hex
        # Unix sockets of BytePS allow short paths only.
        self._temporary = Path(tempfile.mkdtemp(prefix="fault-", dir="/tmp"))
        self._shared = set(os.listdir("/dev/shm"))
        self._log = self._temporary.with_suffix(".log")
        self.others: list[Job] = []  # jobs that a fault has started; their messages count as well
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        *settings: str,
        resume: bool = False,
        options: Sequence[str] = (),
        unread: bool = False,
    ) -> None:
        """Starts it, with these settings besides ``SETTINGS``.

        Args:
            options: more of the launcher's.
            unread: whether its output goes to a full pipe that nobody reads.
        """
        given = [*SETTINGS, *([PIPELINE] if self._engine == "mpi" else []), *settings]
        words = [word for setting in given for word in ("--set", setting)]
        train = [sys.executable, "-m", "ooodist.train", *words, "--output", str(self.output)]
        launch = [sys.executable, "-m", "ooodist.launch", *self._place, "--engine", self._engine]
        launch += options
        own = {
            "OOODIST_FAULT_MARK": self._mark,
            "TMPDIR": str(self._temporary),
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "-1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }
        with _full_pipe(self._log) if unread else self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._before, *launch, "--", *train, *(["--resume"] if resume else [])],
                cwd=ROOT,
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, condition: Callable[[], object]) -> bool:
        """Waits until the condition holds; False if the job ends before, or ``LONGEST`` is over."""
        assert self.process is not None
        deadline = time.monotonic() + LONGEST
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def has_checkpoints(self, number: int = 3) -> bool:
        """Whether it has trained for as many steps as so many checkpoints need."""
        found = folders.checkpoints(self.output) if self.output.is_dir() else []
        return len(found) >= min(number, 2)

    def end(self, seconds: float = LONGEST) -> int | None:
        """Waits for the end and returns the exit code; None if it was still running after that."""
        assert self.process is not None
        try:
            code: int | None = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        self.text = self._log.read_text(errors="replace")
        return code

    def messages(self) -> list[str]:
        """The lines that say why it has ended, each once."""
        text = "\n".join(job.text for job in (self, *self.others))
        found = [line for line in text.splitlines() if TELLING.fullmatch(line)]
        return list(dict.fromkeys(found))

    def processes(self) -> dict[int, dict[str, str]]:
        """All that run and belong to the job: the environment of each, and ``COMMAND``."""
        mark = f"OOODIST_FAULT_MARK={self._mark}"
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
            except OSError:  # it has just ended
                continue
            if mark in words:
                pairs = dict(word.split("=", 1) for word in words if "=" in word)
                found[int(folder.name)] = pairs | {"COMMAND": command.replace("\0", " ")}
        return found

    def rank(self, number: int) -> int | None:
        """The id of the process of a rank; None if there is none."""
        for key, variables in self.processes().items():
            own = variables.get("OOODIST_RANK", variables.get("OMPI_COMM_WORLD_RANK"))
            words = variables["COMMAND"].split()
            if own == str(number) and words[1:3] == ["-m", "ooodist.train"]:
                return key
        return None

    def helper(self, role: str) -> int | None:
        """The id of BytePS's ``server`` or ``scheduler``."""
        for key, variables in self.processes().items():
            if variables.get("DMLC_ROLE") == role and "import byteps.server" in str(variables):
                return key
        return None

    def left(self, seconds: float = CLEAR_SECONDS) -> list[str]:
        """What is left behind so many seconds after the end; removed then."""
        deadline = time.monotonic() + seconds
        while (found := self._left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for key in self.processes():
            os.kill(key, 9)
        subprocess.run(["rm", "-rf", self._temporary, self._log], check=True)
        return found

    def _left(self) -> list[str]:
        found = [f"process {each['COMMAND'][:60]}" for each in self.processes().values()]
        found += [str(path) for path in self._temporary.iterdir()]
        found += [str(path) for path in self.output.glob(".incomplete*")]
        new = set(os.listdir("/dev/shm")) - self._shared
        return found + [f"/dev/shm/{name}" for name in new if not _is_mapped(name)]


@contextmanager
def _full_pipe(text: Path) -> Iterator[int]:
    """A pipe that takes nothing more: this process keeps its other end, and reads nothing."""
    text.touch()  # what was shown: nothing
    _, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    yield writer
    os.close(writer)


def _is_mapped(name: str) -> bool:
    """Whether a process has it mapped: then it belongs to another job of this machine."""
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            if f"/dev/shm/{name}" in path.read_text():
                return True
        except OSError:
            continue
    return False


def weights(output: Path) -> str:
    """What tells the weights of the newest checkpoint from others, bit for bit."""
    path, state = folders.latest(output)
    digests = [state.where(), state.fingerprint]
    if path.is_dir():
        with Parts(path) as parts:
            digests += sorted(f"{each.member} {each.digest}" for each in parts.manifest.variables)
    return "\n".join(digests)
