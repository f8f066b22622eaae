"""Starts the processes of one job, forwards what they write, and ends all when one fails.

One thread waits for everything in one place: for output, and for signals, which Python writes as
bytes into a socket (SIGCHLD: a process has ended; SIGINT, SIGTERM, SIGHUP: end the job).
"""

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from cleaner import Cleaner
from environment import Process
from output import LineSplitter, Output

from ooodist.errors import UserError

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
HELPERS_END_SECONDS = 3.0  # that servers have to end by themselves after the last worker
READ_SIZE = 1 << 20  # no less than a pipe holds, so that one read empties it
TIMEOUT_CODE = 124  # as timeout(1) has it
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Running:
    """One process that was started. ``code``: as subprocess has it, None while it runs."""

    process: Process
    popen: subprocess.Popen[bytes]
    code: int | None = None

    def look(self) -> None:
        """Finds out whether it has ended, but leaves it a zombie.

        So its id, which is also its group's, cannot be given to somebody else's process before
        the end of the job, when the whole group is ended.
        """
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if self.code is None and (end := os.waitid(os.P_PID, self.popen.pid, options)):
            exited = end.si_code == os.CLD_EXITED
            self.code = end.si_status if exited else -end.si_status


@dataclass
class Stream:
    """Standard output (1) or standard error (2) of a process."""

    running: Running
    descriptor: int
    lines: LineSplitter = field(default_factory=LineSplitter)


class Supervisor:
    """Runs one job; made for one call of ``run``."""

    def __init__(self, cleaner: Cleaner, output: Output) -> None:
        self._cleaner = cleaner
        self._output = output
        self._running: list[Running] = []
        self._stopped_by: int | None = None
        self._selector = selectors.DefaultSelector()
        self._signals = self._signals_as_bytes()
        self._selector.register(self._signals, selectors.EVENT_READ)

    def run(
        self, processes: list[Process], cores: list[list[int]] | None, timeout: float | None
    ) -> int:
        """Runs the processes to their end and returns the exit code of the job.

        ``cores``: per worker, the cores it is bound to. ``timeout``: seconds, None for no limit.
        The code is 0 if every worker ended with 0, else that of the process that failed first,
        128 + n for a signal n (to it or to the launcher), 124 if the time was up.
        Raises UserError if a process cannot be started or its output cannot be written.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        bindings = iter(cores or [])
        try:
            for process in processes:
                self._start(process, next(bindings, None) if process.is_worker else None)
            code = self._watch(deadline, timeout)
        finally:
            self._end()
        self._check_output()
        return code

    def _signals_as_bytes(self) -> socket.socket:
        reader, self._signal_writer = socket.socketpair()
        for end in (reader, self._signal_writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._signal_writer.fileno())
        for number in (signal.SIGCHLD, *STOP_SIGNALS):
            # What is ignored from outside (nohup) stays ignored.
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        return reader

    def _start(self, process: Process, cores: list[int] | None) -> None:
        def before_exec() -> None:
            self._cleaner.add_own_group()
            if cores is not None:
                os.sched_setaffinity(0, cores)

        # Output comes line by line, and in UTF-8 whatever the locale.
        output = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
        try:
            self._output.open_log(process.label)
            popen = subprocess.Popen(
                process.command,
                env=os.environ | output | process.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        except OSError as error:
            raise UserError(f"cannot start {process.name}: {error}") from error
        running = Running(process, popen)
        self._running.append(running)
        assert popen.stdout
        assert popen.stderr
        for descriptor, pipe in ((1, popen.stdout), (2, popen.stderr)):
            self._selector.register(pipe, selectors.EVENT_READ, Stream(running, descriptor))

    def _watch(self, deadline: float | None, timeout: float | None) -> int:
        workers = [running for running in self._running if running.process.is_worker]
        while any(worker.code is None for worker in workers):
            self._wait(deadline)
            if self._stopped_by is not None:
                name = signal.Signals(self._stopped_by).name
                self._output.say(f"{name}: ending the job")
                return 128 + self._stopped_by
            self._check_output()
            failed = [(run.process.name, run.code) for run in self._running if run.code]
            if failed and any(worker.code != 0 for worker in workers):
                ends = ", ".join(f"{name} {_how(code)}" for name, code in failed)
                self._output.say(f"{ends}: ending the job")
                _, code = failed[0]
                return code if code > 0 else 128 - code
            if deadline is not None and time.monotonic() >= deadline:
                self._output.say(f"not finished after {timeout:g} s (--timeout): ending the job")
                return TIMEOUT_CODE
        self._wait_for_ends(HELPERS_END_SECONDS)
        for run in self._running:
            if run.code:
                self._output.say(f"{run.process.name} {_how(run.code)} after the last worker")
        return 0

    def _check_output(self) -> None:
        if self._output.failure:
            raise UserError(f"cannot write the output of the job: {self._output.failure}")

    def _wait(self, deadline: float | None) -> None:
        """Waits for the next event, at most until ``deadline``, and deals with what there is."""
        limit = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = [key for key, _ in self._selector.select(limit)]
        for key in ready:
            if key.fileobj is not self._signals:
                self._forward(key)
        if any(key.fileobj is self._signals for key in ready):
            for number in self._signals.recv(4096):
                if number in STOP_SIGNALS:
                    self._stopped_by = number
            for running in self._running:
                running.look()

    def _wait_for_ends(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._alive() and time.monotonic() < deadline:
            self._wait(deadline)

    def _alive(self) -> list[Running]:
        return [running for running in self._running if running.code is None]

    def _forward(self, key: selectors.SelectorKey) -> None:
        data = os.read(key.fd, READ_SIZE)
        lines: LineSplitter = key.data.lines
        if not data:
            self._selector.unregister(key.fileobj)
        self._show(key.data, lines.feed(data) if data else lines.end())

    def _show(self, stream: Stream, lines: Iterable[tuple[bytes, bool]]) -> None:
        for text, whole in lines:
            self._output.show(stream.descriptor, stream.running.process.label, text, whole)

    def _end(self) -> None:
        """Ends whatever still runs: SIGTERM to every group, SIGKILL after the grace."""
        self._signal_groups(signal.SIGTERM)
        self._wait_for_ends(GRACE_SECONDS)
        if alive := self._alive():
            names = ", ".join(running.process.name for running in alive)
            self._output.say(f"still running {GRACE_SECONDS:g} s after SIGTERM, killed: {names}")
        self._signal_groups(signal.SIGKILL)
        for running in self._running:
            running.popen.wait()
        self._forward_the_rest()
        self._output.close_logs()
        signal.set_wakeup_fd(-1)

    def _signal_groups(self, number: int) -> None:
        # Those too whose first process has ended: what it has started may still run.
        for running in self._running:
            os.killpg(running.popen.pid, number)

    def _forward_the_rest(self) -> None:
        """Shows what still stands in the pipes, and lines that never got their line feed."""
        self._selector.unregister(self._signals)
        for key, _ in self._selector.select(0):
            self._forward(key)
        for key in self._selector.get_map().values():
            self._show(key.data, key.data.lines.end())


def _how(code: int) -> str:
    if code > 0:
        return f"exited with code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"
