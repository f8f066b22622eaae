"""Starts real launchers, and checks after every test that they have left nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fork_server import fast_python

LAUNCH = Path(__file__).parents[2] / "launch"
LOCAL = LAUNCH / "local.py"
CLEAR_SECONDS = 10.0


class Launchers:
    """Starts a launcher in an environment by which all its descendants can be found."""

    def __init__(
        self, program: Path, temporary: Path, packages: Path, before: Sequence[str] = ()
    ) -> None:
        """``before``: what the command line begins with, as for a host of a network."""
        self.temporary = temporary
        self._command = [*before, sys.executable, str(program)]
        self._packages = packages
        mark = uuid.uuid4().hex
        self._mark = f"OOODIST_TEST_MARK={mark}".encode()
        self.started: list[subprocess.Popen[str]] = []
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("OOODIST_")
        }
        self.environment = inherited | {
            "OOODIST_TEST_MARK": mark,
            "TMPDIR": str(temporary),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }

    def start(self, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """A launcher with these arguments, running, in a process group of its own."""
        launcher = subprocess.Popen(
            [*self._command, *arguments],
            env=self.environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
            # Tests run in the background of a script have SIGINT ignored, and would pass that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.started.append(launcher)
        return launcher

    def run(self, *arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        """What a launcher with these arguments ends with, at most ``timeout`` seconds later."""
        launcher = self.start(*arguments)
        stdout, stderr = launcher.communicate(timeout=timeout)
        return subprocess.CompletedProcess(arguments, launcher.returncode, stdout, stderr)

    def stand_in(self, package: str, **modules: str) -> None:
        """Puts a package before the installed one of the same name."""
        folder = self._packages / package
        folder.mkdir()
        for module, source in modules.items():
            (folder / f"{module}.py").write_text(source)
        self.environment["PYTHONPATH"] = str(self._packages)

    def processes(self) -> dict[int, str]:
        """All running processes, by id, that come from one of these launchers."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark in (folder / "environ").read_bytes().split(b"\0"):
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = command.decode()
            except OSError:  # it has just ended
                continue
        return found

    def check_nothing_is_left(self) -> None:
        """Fails if a process or temporary file is still there after some seconds."""
        wait_until(lambda: not self.processes(), lambda: f"still running: {self.processes()}")
        assert not list(self.temporary.iterdir())

    def kill_all(self) -> None:
        """Ends all processes of this test, whatever happened."""
        for launcher in self.started:
            launcher.kill()
            launcher.wait()
            for stream in (launcher.stdout, launcher.stderr):
                if stream is not None:
                    stream.close()
        deadline = time.monotonic() + CLEAR_SECONDS
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.02)  # the cleaner is at work
        for process in self.processes():
            os.kill(process, signal.SIGKILL)


def wait_until(
    condition: Callable[[], object], failure: Callable[[], str], seconds: float = CLEAR_SECONDS
) -> None:
    """Fails with the message when the condition is not met after some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, failure()
        time.sleep(0.02)


def python(script: str) -> list[str]:
    """The end of a launcher's command line: workers that run this."""
    return ["--", sys.executable, "-c", script]


def forked(script: str) -> list[str]:
    """The same with TensorFlow imported; their names in /proc are those of the fork server."""
    return ["--", fast_python(), "-c", script]


def networks_of(process: int) -> list[str]:
    """What is there of the emulated networks that a process has made, on all of this machine."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    named = [*Path("/run/netns").glob("*"), *Path("/etc/netns").glob("*")]
    return [
        found
        for found in [*map(str, named), *links.stdout.splitlines()]
        if f"ooodist-{process}-" in found
    ]


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[Launchers]:
    """``launch/local.py``, of which nothing may be left when the test has ended."""
    with launchers_of(LOCAL, tmp_path) as started:
        yield started


def needs_root() -> None:
    """Skips the test, saying so, without root."""
    if os.geteuid() != 0:
        pytest.skip("the emulated network needs root: run these tests as root")


@contextmanager
def launchers_of(program: Path, packages: Path, before: Sequence[str] = ()) -> Iterator[Launchers]:
    """Launchers of which nothing may be left in the end."""
    # Not below tmp_path, which is too long for Unix sockets.
    with tempfile.TemporaryDirectory(prefix="launch-", dir="/tmp") as temporary:
        started = Launchers(program, Path(temporary), packages, before)
        try:
            yield started
            started.check_nothing_is_left()
        finally:
            started.kill_all()
