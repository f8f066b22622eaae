"""A Slurm cluster of real daemons, on the hosts of an emulated network."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from expr.lab.network import Lab
from ooodist.launcher.host import Host
from tests.fork_server import fast_python
from tests.launcher.conftest import needs_root, wait_until

ROOT = Path(__file__).parents[3]
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
UP_SECONDS = 20.0
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost=host0({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=10
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Cluster:
    """Slurm's daemons on the hosts of a network; a context manager that ends them.

    Attributes:
        hosts: those of the network; the controller is on the first.
        folder: that of its files, which a test may use as well.
        environment: of commands such as ``sbatch``.
    """

    def __init__(self, lab: Lab) -> None:
        """Describes the cluster; with the network, all of it is removed."""
        self.hosts = lab.hosts
        self._cleaner = lab.cleaner
        # Not in /tmp: munged refuses folders that everybody may write to, and those above it.
        self.folder = folder = Path("/run") / f"ooodist-slurm-{secrets.token_hex(4)}"
        self._daemons: list[subprocess.Popen[bytes]] = []
        folders = (Path(fast_python()).parent, Path(sys.executable).parent)  # of python, of others
        self.environment = os.environ | {
            "PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "-1",
            # Open MPI on few cores, as root.
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }

    def run(
        self, *command: str, more: Mapping[str, str] | None = None, seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the first host, with these variables besides."""
        return subprocess.run(
            self.hosts[0].wrap(list(command)),
            cwd=self.folder,
            env=self.environment | (more or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )

    def batch(self, script: Path, *arguments: str, seconds: float = 120) -> tuple[str, str]:
        """Runs a script on all hosts; returns ``state:code`` of the job, and its output."""
        log = self.folder / f"{script.stem}.log"
        options = ["--parsable", f"--nodes={len(self.hosts)}", f"--output={log}"]
        submitted = self.run("sbatch", *options, str(script), *arguments)
        assert submitted.returncode == 0, submitted.stdout
        number = submitted.stdout.strip()

        def state() -> str:
            shown = self.run("scontrol", "--oneliner", "show", "job", number).stdout
            fields = dict(field.split("=", 1) for field in shown.split() if "=" in field)
            return f"{fields['JobState']}:{fields['ExitCode'].split(':')[0]}"

        # Not sbatch --wait, which looks only every half a minute.
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_until(lambda: state().startswith(ended), lambda: log.read_text(), seconds)
        return state(), log.read_text()

    def __enter__(self) -> Self:
        self._cleaner.add_folder(self.folder)
        self.folder.mkdir(mode=0o711)  # munged insists that everybody reaches its socket
        self._configure()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid"}
        options = [f"--{name}={self.folder}/munge.{end}" for name, end in files.items()]
        options.append(f"--seed-file={self.folder}/munge.seed")
        self._start(Host(), "munged", "--foreground", *options)
        wait_until((self.folder / "munge.socket").exists, lambda: "munged has not started")
        self._start(self.hosts[0], "slurmctld", "-D")
        for host in self.hosts:
            self._start(host, "slurmd", "-D", "-N", host.name)
        wait_until(self._is_up, self._state, UP_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()  # asked to end, slurmctld saves its state for up to ten seconds
            daemon.wait()
            self._cleaner.forget_group(daemon.pid)

    def _configure(self) -> None:
        nodes = [f"NodeName={host.name} NodeAddr={host.address} CPUs=1\n" for host in self.hosts]
        text = CONFIGURATION.format(address=self.hosts[0].address, folder=self.folder)
        (self.folder / "slurm.conf").write_text(text + "".join(nodes))
        # Named, as slurmd would look for a mounted one, and end without; nothing here uses it.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for name in ("state", *(f"spool-{host.name}" for host in self.hosts)):
            (self.folder / name).mkdir()

    def _start(self, host: Host, *command: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    host.wrap(list(command)),
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=self._cleaner.add_own_group,
                )
            )

    def _is_up(self) -> bool:
        found = self.run("sinfo", "-h", "-o", "%D %t").stdout.split()
        return found == [str(len(self.hosts)), "idle"]

    def _state(self) -> str:
        logs = [file.read_text()[-3000:] for file in self.folder.glob("*.log")]
        return "\n".join([self.run("sinfo").stdout, *logs])


def needs_slurm() -> None:
    """Skips the test without root; fails it without Slurm, which root can install."""
    needs_root()
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    assert not missing, f"no {', '.join(missing)}: run apt-get install slurmctld slurmd munge"
