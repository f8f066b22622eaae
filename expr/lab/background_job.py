"""A job that runs in the background, so that its starter can, say, run another one in turn."""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Process
from ooodist.launcher.job_processes import HELPERS_END_SECONDS, JobProcesses, Running, how


class BackgroundJob:
    """A running job. Each process writes its output to a file, ``LOG_FOLDER/0.log`` and so on.

    Attributes:
        log_folder: the folder of these files.
        failure: after ``wait``, what has gone wrong; empty if nothing has.
    """

    def __init__(
        self, processes: list[Process], cleaner: Cleaner, log_folder: Path, resources: ExitStack
    ) -> None:
        """Starts the processes.

        Args:
            resources: closed when the job has ended.

        Raises:
            UserError: one cannot be started; those that were started are ended.
        """
        self.log_folder = log_folder
        self.failure = ""
        self._job = JobProcesses(cleaner)
        self._resources = resources
        try:
            for process in processes:
                self._start(process)
        except BaseException:
            self.end()
            raise

    @property
    def process_ids(self) -> dict[str, int]:
        """The id of each process, by label: ``"0"`` is worker 0, ``"server 0"`` a server."""
        return {running.process.label: running.popen.pid for running in self._job.running}

    def pause(self) -> None:
        """Stops all processes where they are.

        A job of ``Lab.start`` may stay stopped for a day. A program that uses TensorFlow's
        collectives without ``ooodist.init`` fails if it is resumed after more than five seconds.
        """
        self._job.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resumes all processes."""
        self._job.signal(signal.SIGCONT)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the job, and ends all of it as soon as one process fails.

        Args:
            timeout: seconds; None: no limit.

        Returns:
            The exit code: 0 if every worker exited with 0, else that of the process that failed
            first, which is 128 + n if signal n ended it.

        Raises:
            TimeoutError: the job has not ended in time; it continues.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._job.look()
        while (code := self._job.code()) is None:
            self._wait_for_one(deadline)
            if deadline is not None and time.monotonic() >= deadline and self._job.code() is None:
                raise TimeoutError(f"the job goes on after {timeout:g} s; logs: {self.log_folder}")
        if code == 0:
            self._wait_for(self._job.alive, HELPERS_END_SECONDS)
        else:
            ends = ", ".join(how(running) for running in self._job.failed())
            self.failure = f"{ends}; logs: {self.log_folder}"
        self.end()
        return code

    def end(self) -> None:
        """Ends all processes of the job that still run."""
        self._job.end(self._wait_for)
        self._resources.close()

    def _start(self, process: Process) -> None:
        path = self.log_folder / f"{process.label.replace(' ', '-')}.log"
        try:
            self.log_folder.mkdir(parents=True, exist_ok=True)
            log = path.open("wb")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        with log:
            self._job.start(process, log, log)

    def _wait_for(self, left: Callable[[], list[Running]], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while left() and time.monotonic() < deadline:
            self._wait_for_one(deadline)

    def _wait_for_one(self, deadline: float | None) -> None:
        """Waits until a process ends, or until the deadline."""
        with ExitStack() as closing:
            poll = select.poll()
            for running in self._job.alive():
                descriptor = os.pidfd_open(running.popen.pid)
                closing.callback(os.close, descriptor)
                poll.register(descriptor, select.POLLIN)
            left = None if deadline is None else 1000 * max(0.0, deadline - time.monotonic())
            poll.poll(left)
        self._job.look()
