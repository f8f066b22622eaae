"""What a rank of mpirun that was killed leaves, and how it is told to save."""

import subprocess
import sys
from pathlib import Path

import pytest

from ooodist.launcher.ssh.runner import SHARED_MEMORY

from ..conftest import wait_until


@pytest.mark.parametrize("variable", SHARED_MEMORY)
def test_shared_memory_of_open_mpi(variable: str) -> None:
    command = f'echo "${variable}"; echo > "${variable}/vader_segment.host.0.1.0"; kill -9 $$'
    rank = [sys.executable, "-m", "ooodist.launcher.ssh.runner", "{}", "sh", "-c", command]
    done = subprocess.run(rank, capture_output=True, text=True, timeout=20)
    assert done.returncode == -9
    folder = Path(done.stdout.strip())
    assert folder.parent == Path("/dev/shm")
    wait_until(lambda: not folder.exists(), lambda: str(list(folder.iterdir())))


def test_a_rank_is_told_to_save_at_any_moment() -> None:
    # mpirun may pass the signal on as soon as the process runs, before its runner waits for it.
    command = "trap 'echo saved; exit 0' TERM; kill -USR1 $PPID; while :; do sleep 0.1; done"
    rank = [sys.executable, "-m", "ooodist.launcher.ssh.runner", "{}", "sh", "-c", command]
    started = [subprocess.Popen(rank, stdout=subprocess.PIPE) for _ in range(10)]
    assert [(each.communicate(timeout=20)[0], each.returncode) for each in started] == [
        (b"saved\n", 0)
    ] * 10
