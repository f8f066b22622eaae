"""With which options mpirun starts, and what is looked at before."""

from __future__ import annotations

import os
import shutil
import signal
from collections import namedtuple
from pathlib import Path

import pytest

from ooodist.errors import UserError
from ooodist.launcher.environment import Process
from ooodist.launcher.host import Host
from ooodist.launcher.ssh import mpirun
from ooodist.launcher.ssh.preflight import Way

from ..conftest import Launchers

Usage = namedtuple("Usage", "total used free")


def process(ranks: int) -> Process:
    way = Way(("ssh",), "python", Path("/"))
    return mpirun.process("mpi", ["true"], [Host()] * ranks, way, Path("/tmp"))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="apt-get install openmpi-bin")
def test_root_may_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in (0, 1000):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert ("--allow-run-as-root" in process(1).command) == (user == 0)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="apt-get install openmpi-bin")
def test_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)
    free = 17 << 20
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(64 << 20, 0, free))
    process(2)
    with pytest.raises(UserError, match=r"/dev/shm has 17.0 MiB free, and 4 ranks .* need 32 MiB"):
        process(4)
    monkeypatch.setenv("OMPI_MCA_btl", "self,tcp")
    process(4)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="apt-get install openmpi-bin")
def test_ctrl_c_lets_ranks_save(launchers: Launchers) -> None:
    save = "trap 'sleep 1.5; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    launcher = launchers.start("-np", "2", "--engine", "mpi", "--", "sh", "-c", save)
    assert launcher.stdout is not None
    for _ in range(2):
        launcher.stdout.readline()
    launcher.send_signal(signal.SIGINT)
    stdout, stderr = launcher.communicate(timeout=30)
    assert launcher.returncode == 130, stderr
    assert sorted(stdout.splitlines()) == ["[0] saved", "[1] saved"]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="apt-get install openmpi-bin")
def test_one_machine_needs_no_ssh(launchers: Launchers, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "mpirun").symlink_to(str(shutil.which("mpirun")))
    launchers.environment["PATH"] = str(folder)
    done = launchers.run("-np", "2", "--engine", "mpi", "--", "/bin/echo", "started")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] started", "[1] started"]
