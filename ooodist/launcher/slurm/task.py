"""The place of a task in its Slurm step: rank, hosts and ports, from ``SLURM_*``."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ooodist.errors import UserError

# Below the ports that Linux gives to outgoing connections (32768 to 60999).
FIRST_PORT = 20_000
PORTS_OF_A_JOB = 64  # on each host, in turn by the number of the job
MOST_JOBS = 187  # whose ports differ


@dataclass(frozen=True)
class Task:
    """One task of a step.

    Attributes:
        rank: its number among all tasks.
        local_rank: its number among those of its host.
        host: the number of its host.
        hosts: the names of all hosts, in order.
        tasks: how many tasks each host has.
        job: the number of the job.
    """

    rank: int
    local_rank: int
    host: int
    hosts: list[str]
    tasks: list[int]
    job: int

    @property
    def is_first_of_host(self) -> bool:
        """Whether it is the one that starts what its host needs once."""
        return self.local_rank == 0


def task_of(environ: Mapping[str, str], expand: Callable[[str], list[str]] | None = None) -> Task:
    """The task that this process is.

    Args:
        environ: the variables that ``srun`` has set.
        expand: makes names of a list such as ``gpu[01-03,7]``; None: ``scontrol`` does.

    Raises:
        UserError: this is no task of a step, or the ranks of a host do not follow each other.
    """
    missing = [name for name in ("SLURM_PROCID", "SLURM_STEP_NODELIST") if name not in environ]
    if missing:
        raise UserError(
            f"{missing[0]} is not set, so that this process is no task of a Slurm step; start it "
            "by srun, in a job: sbatch launch/slurm/collective.sbatch --config job.yaml"
        )
    task = Task(
        rank=_number(environ, "SLURM_PROCID"),
        local_rank=_number(environ, "SLURM_LOCALID"),
        host=_number(environ, "SLURM_NODEID"),
        hosts=(expand or host_names)(environ["SLURM_STEP_NODELIST"]),
        tasks=tasks_per_host(environ.get("SLURM_STEP_TASKS_PER_NODE", "")),
        job=_number(environ, "SLURM_JOB_ID"),
    )
    if len(task.hosts) != len(task.tasks) or task.host >= len(task.hosts):
        raise UserError(
            f"SLURM_STEP_NODELIST={environ['SLURM_STEP_NODELIST']} has {len(task.hosts)} hosts, "
            f"but SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']} and "
            f"SLURM_NODEID={task.host} do not fit them; leave the variables as srun sets them"
        )
    if task.rank != sum(task.tasks[: task.host]) + task.local_rank:
        raise UserError(
            f"rank {task.rank} is task {task.local_rank} of host {task.host}, so that ranks of one "
            "host do not follow each other; give srun --distribution=block"
        )
    if max(task.tasks) > PORTS_OF_A_JOB:
        raise UserError(
            f"{max(task.tasks)} tasks on one host; at most {PORTS_OF_A_JOB} are possible: set "
            "--ntasks-per-node to that, or less"
        )
    return task


def first_port(job: int) -> int:
    """The first port of a job, from which task i of a host takes the i-th.

    All tasks must know it before they can talk to each other, so it follows from the job's number.
    """
    return FIRST_PORT + PORTS_OF_A_JOB * (job % MOST_JOBS)


def tasks_per_host(text: str) -> list[int]:
    """Parses counts such as ``2(x3),1``, which is 2, 2, 2, 1. Raises UserError."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise UserError(
                f"SLURM_STEP_TASKS_PER_NODE is {text!r}; it must be like 2(x3),1, as srun sets it"
            )
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def host_names(text: str) -> list[str]:
    """The names of a list such as ``gpu[01-03,7]``. Raises UserError."""
    command = ["scontrol", "show", "hostnames", text]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise UserError(
            "scontrol is not on PATH, which expands Slurm's lists of hosts; add the folder of "
            "Slurm's programs to PATH"
        ) from error
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split())
        raise UserError(f"`{' '.join(command)}` failed: {reason}; correct the list") from error
    return done.stdout.split()


def _number(environ: Mapping[str, str], variable: str) -> int:
    text = environ.get(variable, "")
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{variable} is {text!r}; it must be a number from 0, as srun sets it")
    return int(text)
