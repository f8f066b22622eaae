"""What a rank of mpirun that was killed leaves."""

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
