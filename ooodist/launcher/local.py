"""Starts the processes of one training job on this machine: ``python launch/local.py --help``.

On several hosts, start the processes by hand or with your cluster's own launcher. The same program,
``python -m ooodist.train …``, runs on every host; only how the processes meet differs.

collective (TensorFlow's own, nothing to build). One process per worker, each with

    TF_CONFIG='{"cluster": {"worker": ["a:2222", "b:2222"]},
                "task": {"type": "worker", "index": I}}'

where a and b are host names, 2222 a free port there, and I is 0 on a and 1 on b. TensorFlow's
server listens on all networks of the host and asks for no password: whoever reaches it can run
programs as you. Use a network that others cannot reach.

horovod. Its launcher, run on one host, starts all processes through ssh:

    horovodrun -np 4 -H a:2,b:2 python -m ooodist.train …

byteps. One scheduler and some servers (on CPU hosts or beside the workers), then the workers.
All processes have

    DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=1 DMLC_PS_ROOT_URI=<address of the scheduler's host>
    DMLC_PS_ROOT_PORT=<a free port there> DMLC_INTERFACE=<network interface to use, as eth0>

and, each on its host,

    DMLC_ROLE=scheduler python -c 'import byteps.server'
    DMLC_ROLE=server    python -c 'import byteps.server'
    DMLC_ROLE=worker DMLC_WORKER_ID=I BYTEPS_LOCAL_RANK=0 BYTEPS_LOCAL_SIZE=1 \\
        BYTEPS_SOCKET_PATH=<an empty folder> python -m ooodist.train …

Two workers on one host need different folders. If a process dies, our build of BytePS ends the
others some 10 to 25 seconds later (PS_HEARTBEAT_TIMEOUT, in seconds; 0 disables it).

Add OOODIST_ENGINE=<engine> to name the engine instead of having it detected from these variables.
"""

import argparse
import os
from contextlib import ExitStack

from ooodist.errors import UserError
from ooodist.launcher import environment, private_network
from ooodist.launcher.arguments import (
    check_command,
    count,
    log_folder,
    new_parser,
    parse,
    reporting,
)
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Places
from ooodist.launcher.host import Host
from ooodist.launcher.output import Output
from ooodist.launcher.supervise import Supervisor

DESCRIPTION = """\
Start the processes of one training job on this machine, show their output with the rank in front,
and end all of them when one fails. Nothing is left behind: no process, temporary folder or shared
memory, not even if this launcher is killed.

Nothing of a job listens outside this machine's loopback network. TensorFlow's own server, of
--engine collective, would listen everywhere and let anybody run programs as you, so with that
engine the workers get a network of their own: they reach each other, and nothing else."""
EXAMPLES = """\
Every worker finds its place in OOODIST_ENGINE, OOODIST_RANK, OOODIST_SIZE, OOODIST_LOCAL_RANK and
OOODIST_LOCAL_SIZE, and in the variables of its engine; TMPDIR is a folder that is removed with the
job. Everything else of this environment is passed on as it is.

exit code: 0 if all workers ended with 0, else that of the process that failed first; 128 + n if
signal n ended it or this launcher; 124 if --timeout was reached; 2 for wrong use.

examples:
  # two workers, TensorFlow's own collectives (nothing to build)
  python launch/local.py -np 2 --engine collective -- python -m ooodist.train --config digits.yaml

  # four workers and two servers, a log file for each, one hour at most
  python launch/local.py -np 4 --engine byteps --servers 2 --log-dir logs --timeout 3600 \\
      -- python -m ooodist.train --config digits.yaml
"""
OPEN_SERVER = (
    "TensorFlow's server listens on all networks of this machine and asks for no password: whoever "
    "reaches it can run programs as you. "
)


def main(arguments: list[str]) -> int:
    """Runs one job and returns the exit code."""
    options, command = _parse(arguments)
    return reporting(lambda: _launch(options, command))


def _launch(options: argparse.Namespace, command: list[str]) -> int:
    check_command(command)
    if options.bind:
        workers = [Host(cores=share) for share in _split_cores(options.num_workers)]
    else:
        workers = [Host()] * options.num_workers
    places = Places(workers, servers=[Host()] * (options.servers or 1))
    output = Output(log_folder(options.log_dir))
    if options.engine == "collective" and options.num_workers > 1:
        _close_network(output, share=options.share_network)
    with Cleaner() as cleaner, ExitStack() as resources:
        processes = environment.processes(options.engine, command, places, cleaner, resources)
        return Supervisor(cleaner, output).run(processes, options.timeout)


def _close_network(output: Output, *, share: bool) -> None:
    """Moves the job into a network of its own, and says what follows from that or its absence."""
    if share:
        output.say(f"{OPEN_SERVER}That is what --share-network asks for")
        return
    try:
        private_network.enter()
    except OSError as error:
        output.say(
            f"{OPEN_SERVER}This system allows no network of the job's own ({error.strerror}). Take "
            "--engine horovod or byteps, which listen on loopback alone, or keep others out by a "
            "firewall"
        )
    else:
        output.say(
            "the workers have a network of their own, without the internet (--share-network, or "
            "another engine: with it)"
        )


def _split_cores(num_workers: int) -> list[tuple[int, ...]]:
    cores = sorted(os.sched_getaffinity(0))
    if num_workers > len(cores):
        raise UserError(
            f"--bind with -np {num_workers}: there are only {len(cores)} cores; "
            "give each worker at least one, or leave out --bind"
        )
    bounds = [rank * len(cores) // num_workers for rank in range(num_workers + 1)]
    return [tuple(cores[bounds[rank] : bounds[rank + 1]]) for rank in range(num_workers)]


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = new_parser("launch/local.py", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--servers", metavar="S", type=count, help="number of byteps servers (default: 1)"
    )
    parser.add_argument(
        "--bind",
        action="store_true",
        help="give each worker its own equal share of the cores (default: all use all)",
    )
    parser.add_argument(
        "--share-network",
        action="store_true",
        help="with --engine collective: leave the workers in this machine's network, for data from "
        "the internet, say; then TensorFlow's server is open to whoever reaches this machine",
    )
    options, command = parse(parser, arguments)
    if options.share_network and options.engine != "collective":
        parser.error(
            f"--share-network is for --engine collective; {options.engine} always shares it"
        )
    return options, command
