"""Runs the processes of one job, forwards their output, and ends all when one fails.

One thread waits for everything in one place: for output, and for signals, which Python writes as
bytes to a socket (SIGCHLD: a process has ended or was stopped; SIGINT, SIGTERM, SIGHUP: end the
job).
"""

import math
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Process
from ooodist.launcher.job_processes import (
    GRACE_AFTER_SAVING_SECONDS,
    GRACE_SECONDS,
    HELPERS_END_SECONDS,
    SAVING_SECONDS,
    JobProcesses,
    Running,
    how,
)
from ooodist.launcher.output import LineSplitter, Output
from ooodist.launcher.ssh import stopped
from ooodist.launcher.ssh.mpirun import rank_of

READ_SIZE = 1 << 20  # at least the capacity of a pipe, so that one read empties it
TIMEOUT_CODE = 124  # as timeout(1)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# timeout(1) sends its signal twice, to a process and its group, and systemd SIGHUP after SIGTERM:
# only what comes so much later is somebody who insists.
SECOND_SIGNAL_SECONDS = 0.2
UNREAD_SECONDS = 1.0  # for the last lines of a job that is told to end, should nobody read them


@dataclass
class Stream:
    """Standard output (1) or standard error (2) of a process."""

    running: Running
    descriptor: int
    lines: LineSplitter = field(default_factory=LineSplitter)


class Signals:
    """What is sent to this process, as bytes to a socket, from now on.

    One is enough for all jobs of a process, one after the other: a signal that comes between two
    of them ends the next.

    Attributes:
        reader: can be read when a signal has come.
        stopped_by: the first of STOP_SIGNALS that has come, as of the last ``look``.
        insists: whether another one has come since, so that all is to end at once.
    """

    def __init__(self) -> None:
        self.reader, self._writer = socket.socketpair()
        self.stopped_by: int | None = None
        self.insists = False
        self._stopped_at = math.inf
        for end in (self.reader, self._writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno())
        self._before: dict[int, Any] = {}
        for number in (signal.SIGCHLD, *STOP_SIGNALS):
            # What is ignored already (nohup) stays ignored.
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, lambda *_: None)

    def look(self) -> int | None:
        """Reads what has come, and returns ``stopped_by``."""
        with suppress(BlockingIOError):
            for number in self.reader.recv(4096):
                if number not in STOP_SIGNALS:
                    continue
                if self.stopped_by is None:
                    self.stopped_by, self._stopped_at = number, time.monotonic()
                elif time.monotonic() >= self._stopped_at + SECOND_SIGNAL_SECONDS:
                    self.insists = True
        return self.stopped_by

    def close(self) -> None:
        """Lets go of the sockets; signals do what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        self.reader.close()
        self._writer.close()


def finish(output: Output, signals: Signals, deadline: float) -> None:
    """Waits until what was shown has been read, or a signal or the deadline comes.

    In any case there is some time, but little for a job that was told to end.
    """
    least = time.monotonic() + UNREAD_SECONDS
    while output.is_blocked:
        latest = max(deadline, least) if signals.stopped_by is None else least
        left = latest - time.monotonic()
        if left <= 0:
            return
        output.wait(signals.reader, None if left == math.inf else left)
        signals.look()


class Supervisor:
    """Runs one job; used for a single call of ``run``.

    Attributes:
        failure: after ``run``, which processes have failed, and how; empty if the job ended well,
            or because the launcher was told to end it.
    """

    def __init__(self, cleaner: Cleaner, output: Output, signals: Signals) -> None:
        self._job = JobProcesses(cleaner)
        self._cleaner = cleaner
        self.failure = ""
        self._output = output
        self._signals = signals
        self._next_look = math.inf  # for stopped processes, as of time.monotonic
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.reader, selectors.EVENT_READ)

    def run(self, processes: list[Process], timeout: float | None) -> int:
        """Runs the processes to their end and returns the exit code of the job.

        ``timeout`` is in seconds; None for no limit.
        The code is 0 if every worker exited with 0, else that of the process that failed first,
        128 + n for a signal n (to it or to the launcher), 124 on timeout.
        Raises UserError if a process cannot be started or its output cannot be written.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        try:
            for process in processes:
                self._start(process)
            code = self._watch(deadline, timeout)
        finally:
            self._end()
            finish(self._output, self._signals, deadline)
        self._check_output()
        return code

    def _start(self, process: Process) -> None:
        try:
            for label in [process.label, *map(str, range(process.ranks))]:
                self._output.open_log(label)
        except OSError as error:
            raise UserError(f"cannot write the log of {process.name}: {error}") from error
        popen = self._job.start(process, subprocess.PIPE, subprocess.PIPE)
        assert popen.stdout
        assert popen.stderr
        running = self._job.running[-1]
        for descriptor, pipe in ((1, popen.stdout), (2, popen.stderr)):
            self._selector.register(pipe, selectors.EVENT_READ, Stream(running, descriptor))

    def _watch(self, deadline: float, timeout: float | None) -> int:
        while (code := self._job.code()) is None:
            self._wait(deadline)
            if (number := self._signals.stopped_by) is not None:
                name = signal.Signals(number).name
                self._output.say(f"{name}: ending the job (a second signal ends it at once)")
                return 128 + number
            self._check_output()
            if time.monotonic() >= deadline and self._job.code() is None:
                self._output.say(f"not finished after {timeout:g} s (--timeout): ending the job")
                return TIMEOUT_CODE
        if code != 0:
            for running in self._job.stopped():
                self._output.say(
                    f"{running.process.name} is stopped (by SIGSTOP, Ctrl-Z or a debugger), which "
                    "is what the others waited for"
                )
            self.failure = ", ".join(how(running) for running in self._job.failed())
            self._say_last_words()
            self._output.say(f"{self.failure}: ending the job{self._output.where}")
            self._output.hide_aftermath()
            return code
        self._wait_for(self._job.alive, HELPERS_END_SECONDS)
        for running in self._job.failed():
            self._output.say(f"{how(running)} after the last worker")
        return 0

    def _say_last_words(self) -> None:
        """Shows the last lines of processes that a signal has ended, as these could not say why."""
        silent = [running for running in self._job.failed() if running.is_silenced]
        for key, _ in self._selector.select(0):
            if key.fileobj is not self._signals.reader and key.data.running in silent:
                self._forward(key)
        for running in silent:
            for line in self._output.last(running.process.label):
                self._output.say(f"the last that {running.process.name} wrote: {line}")

    def _check_output(self) -> None:
        if self._output.failure:
            raise UserError(f"cannot write the output of the job: {self._output.failure}")

    def _wait(self, deadline: float) -> None:
        """Waits for the next events, at most until ``deadline``, and handles them."""
        next_event = min(self._next_look, deadline)
        limit = None if next_event == math.inf else max(0.0, next_event - time.monotonic())
        if self._output.is_blocked:  # processes wait as well, or the memory would fill
            has_signal = self._output.wait(self._signals.reader, limit)
        else:
            ready = [key for key, _ in self._selector.select(limit)]
            has_signal = any(key.fileobj is self._signals.reader for key in ready)
            for key in ready:
                if key.fileobj is not self._signals.reader:
                    self._forward(key)
        if has_signal:
            self._signals.look()
            self._job.look()
            if self._cleaner.look():
                self._output.say(
                    "the process that cleans up after this job was ended; a new one is there"
                )
            # One that is stopped raises SIGCHLD as well, but only once.
            self._next_look = min(self._next_look, time.monotonic())
        if time.monotonic() >= self._next_look:
            self._kill_the_stopped()

    def _kill_the_stopped(self) -> None:
        """Kills processes that have been stopped for long, and looks again while one is."""
        for running in self._job.stopped_for_long():
            self._output.say(stopped.message(running.process.name, running.popen.pid))
            os.killpg(running.popen.pid, signal.SIGKILL)
        is_any_stopped = any(running.looks_stopped for running in self._job.alive())
        self._next_look = time.monotonic() + stopped.LOOK_SECONDS if is_any_stopped else math.inf

    def _wait_for(self, left: Callable[[], list[Running]], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while left() and time.monotonic() < deadline and not self._signals.insists:
            self._wait(deadline)

    def _forward(self, key: selectors.SelectorKey) -> None:
        data = os.read(key.fd, READ_SIZE)
        lines: LineSplitter = key.data.lines
        if not data:
            self._selector.unregister(key.fileobj)
        self._show(key.data, lines.feed(data) if data else lines.end())

    def _show(self, stream: Stream, lines: Iterable[tuple[bytes, bool]]) -> None:
        process = stream.running.process
        for text, whole in lines:
            rank, words = rank_of(text) if process.ranks else (None, text)
            self._output.show(stream.descriptor, rank or process.label, words, whole)

    def _end(self) -> None:
        """Ends all processes that still run."""
        may_save = self._signals.stopped_by is not None and not self._job.failed()
        if stubborn := self._job.end(self._wait_for, may_save=may_save):
            names = ", ".join(running.process.name for running in stubborn)
            seconds = SAVING_SECONDS + GRACE_AFTER_SAVING_SECONDS if may_save else GRACE_SECONDS
            late = f"still running {seconds:g} s after SIGTERM"
            why = "a second signal" if self._signals.insists else late
            self._output.say(f"{why}, killed: {names}")
        self._forward_the_rest()
        self._output.close_logs()
        self._selector.close()

    def _forward_the_rest(self) -> None:
        """Shows what is left in the pipes, and lines without a line feed; then closes the pipes."""
        self._selector.unregister(self._signals.reader)
        for key, _ in self._selector.select(0):
            self._forward(key)
        for key in self._selector.get_map().values():
            self._show(key.data, key.data.lines.end())
        for running in self._job.running:
            for pipe in (running.popen.stdout, running.popen.stderr):
                assert pipe
                pipe.close()
