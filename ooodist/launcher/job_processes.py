"""The processes of one job: starts them, checks their state, and ends them."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from ooodist.errors import UserError
from ooodist.launcher.cleaner import Cleaner, kill_groups
from ooodist.launcher.environment import OUTPUT, Process
from ooodist.launcher.ssh import stopped
from ooodist.launcher.ssh.runner import SAVE

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
# The same, where all is well but for a signal to the launcher: workers save a checkpoint first.
# In all, it stays below the 30 s that schedulers commonly give to the launcher itself.
SAVING_SECONDS, GRACE_AFTER_SAVING_SECONDS = 26.0, 2.0
INSIST_SECONDS = 0.5  # until a second SIGTERM, by which workers end without saving
LOST_CODE = 255  # of ssh
HELPERS_END_SECONDS = 3.0  # for servers to end by themselves after the last worker


@dataclass
class Running:
    """One process that was started. ``code`` is as in subprocess, None while it runs.

    Attributes:
        looks_stopped: how many looks of ``stopped_for_long`` in a row found it stopped.
    """

    process: Process
    popen: subprocess.Popen[bytes]
    code: int | None = None
    looks_stopped: int = 0

    def look(self) -> None:
        """Checks whether it has ended, but leaves it a zombie.

        So its id, which is also its group's, cannot be reused for somebody else's process before
        the end of the job, when the whole group is killed.
        """
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if self.code is None and (end := os.waitid(os.P_PID, self.popen.pid, options)):
            exited = end.si_code == os.CLD_EXITED
            self.code = end.si_status if exited else -end.si_status

    def tell(self, line: bytes) -> None:
        """Writes to a runner on another host, if it still reads."""
        assert self.popen.stdin
        with suppress(BrokenPipeError):
            self.popen.stdin.write(line)

    def signal(self, number: int) -> None:
        """Sends a signal to the process, wherever it runs, and to what it has started."""
        if self.process.orders:
            self.tell(b"%d\n" % number)
        else:
            os.killpg(self.popen.pid, number)

    def let_save(self) -> None:
        """Sends SIGTERM to the worker; ``mpirun`` has its ranks do the same."""
        if self.process.ranks:
            os.kill(self.popen.pid, SAVE)
        else:
            self.signal(signal.SIGTERM)

    @property
    def is_silenced(self) -> bool:
        """Whether it had no time to say why it ended: by a signal, or a connection that is lost."""
        code = self.code or 0
        return code < 0 or (bool(self.process.host.place) and code > 128)


class JobProcesses:
    """Those of one job; each has a process group of its own.

    Attributes:
        running: every process that was started, in order; kept after ``end``.
    """

    def __init__(self, cleaner: Cleaner) -> None:
        self.running: list[Running] = []
        self._cleaner = cleaner
        self._has_ended = False

    def start(
        self, process: Process, stdout: int | IO[bytes], stderr: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Starts one of its processes. Raises UserError if that fails."""
        try:
            popen = self._cleaner.popen(
                process.command,
                env=os.environ | OUTPUT | ({} if process.orders else process.environment),
                stdin=subprocess.PIPE if process.orders else subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                bufsize=0,
            )
        except OSError as error:
            raise UserError(f"cannot start {process.name}: {error}") from error
        self.running.append(running := Running(process, popen))
        if process.orders:
            running.tell(process.orders)
        return popen

    def look(self) -> None:
        """Checks which processes have ended."""
        for running in self.running:
            running.look()

    def alive(self) -> list[Running]:
        """The processes that were running at the last check."""
        return [running for running in self.running if running.code is None]

    def alive_workers(self) -> list[Running]:
        """Those of them that are workers."""
        return [running for running in self.alive() if running.process.is_worker]

    def stopped(self) -> list[Running]:
        """Those that wait for a SIGCONT (SIGSTOP, Ctrl-Z, a debugger)."""
        return [each for each in self.alive() if stopped.state(each.popen.pid) in ("T", "t")]

    def stopped_for_long(self) -> list[Running]:
        """Those that were stopped by a signal at each of the last looks, for too long.

        Called every ``LOOK_SECONDS`` while one is stopped. Where all workers are, the job is
        paused: none waits for another, and their time begins when one goes on.
        """
        alive = self.alive()
        now = {each.popen.pid for each in alive if stopped.state(each.popen.pid) == "T"}
        is_paused = now.issuperset(worker.popen.pid for worker in self.alive_workers())
        for running in alive:
            looks = 1 if is_paused else running.looks_stopped + 1
            running.looks_stopped = looks if running.popen.pid in now else 0
        most = stopped.STOPPED_SECONDS / stopped.LOOK_SECONDS
        return [running for running in alive if running.looks_stopped >= most]

    def failed(self) -> list[Running]:
        """The processes that ended with a code other than 0."""
        return [running for running in self.running if running.code]

    def code(self) -> int | None:
        """The exit code of the job, None while it runs.

        It is 0 if every worker exited with 0, else that of the process that failed first, which is
        128 + n if signal n ended it.
        """
        codes = [running.code for running in self.running if running.process.is_worker]
        if all(code == 0 for code in codes):
            return 0
        if failed := self.failed():
            code = failed[0].code
            assert code is not None
            return code if code > 0 else 128 - code
        return None

    def signal(self, number: int) -> None:
        """Sends a signal to every process of the job and to what those have started."""
        # Also to groups whose first process has ended: what it has started may still run.
        if not self._has_ended:
            for running in self.running:
                running.signal(number)

    def end(
        self,
        wait: Callable[[Callable[[], list[Running]], float], None],
        *,
        may_save: bool = False,
    ) -> list[Running]:
        """Ends whatever still runs: SIGTERM to every group, SIGKILL after the grace period.

        Args:
            wait: waits until none of these processes is left, for at most so many seconds.
            may_save: whether workers have time to save a checkpoint together; if not, as one of
                them has failed, they get a second SIGTERM.

        Returns:
            The processes that SIGTERM did not end.
        """
        if self._has_ended:
            return []
        if may_save:
            for running in self.alive_workers():  # they may need servers for that
                running.let_save()
            wait(self.alive_workers, SAVING_SECONDS)
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # in case it is stopped
        wait(self.alive, INSIST_SECONDS)
        if self.alive():
            self.signal(signal.SIGTERM)
        grace = GRACE_AFTER_SAVING_SECONDS if may_save else GRACE_SECONDS
        wait(self.alive, grace - INSIST_SECONDS)
        stubborn = self.alive()
        kill_groups({running.popen.pid for running in self.running})
        self._has_ended = True
        for running in self.running:
            self._cleaner.forget_group(running.popen.pid)
            running.popen.wait()
            if running.popen.stdin:
                running.popen.stdin.close()
        return stubborn


def how(running: Running) -> str:
    """How a process has ended, for a message."""
    code, name = running.code, running.process.name
    assert code is not None
    if code < 0:
        return f"{name} was killed by signal {-code} ({signal.strsignal(-code)})"
    if running.process.host.place and code == LOST_CODE:
        return f"the connection to {name} was lost"
    if running.process.host.place and code > 128:
        by = signal.strsignal(code - 128)
        return f"{name} ended with code {code} (128 + signal {code - 128}: {by})"
    return f"{name} exited with code {code}"
