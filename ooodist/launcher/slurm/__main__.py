"""``srun … python -m ooodist.launcher.slurm``: starts a rank in each task; see ``--help``."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack, closing

from ooodist.engines.kinds import kinds
from ooodist.launcher.arguments import check_command, log_folder, new_parser, parse, reporting
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.output import Output
from ooodist.launcher.slurm.processes import processes
from ooodist.launcher.slurm.task import task_of
from ooodist.launcher.supervise import Signals, Supervisor
from ooodist.util.channel import open_closed_streams

DESCRIPTION = """\
Start one rank of a training job in each task of a Slurm step. The ranks find each other by what
srun says in SLURM_*; nothing else has to be set, and no password or ssh is needed. The first task
also runs Horovod's rendezvous or BytePS's scheduler, and the first one of each host a server of
BytePS."""
EXAMPLES = """\
The files in launch/slurm call it, for any number of hosts:
  sbatch --nodes=4 launch/slurm/horovod.sbatch --config job.yaml

In a job of your own:
  srun --kill-on-bad-exit=1 python -m ooodist.launcher.slurm --engine collective \\
      -- python my_training.py

Pipelines, and Horovod over MPI, need none of it: mpirun asks Slurm for the hosts itself.
"""


def main(arguments: list[str]) -> int:
    """Runs the rank of this task and returns its exit code."""
    open_closed_streams()
    names = [name for name, kind in kinds().items() if kind.sums and kind.starter]
    program = "python -m ooodist.launcher.slurm"
    parser = new_parser(program, DESCRIPTION, EXAMPLES, f"srun … {program}", names)
    options, command = parse(parser, arguments)
    return reporting(lambda: _run(options, command))


def _run(options: argparse.Namespace, command: list[str]) -> int:
    check_command(command)
    task = task_of(os.environ)
    output = Output(log_folder(options.log_dir))
    with closing(Signals()) as signals, Cleaner() as cleaner, ExitStack() as resources:
        started = processes(options.engine, command, task, cleaner, resources)
        return Supervisor(cleaner, output, signals).run(started, options.timeout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
