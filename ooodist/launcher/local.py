"""Starts the processes of one training job: ``python -m ooodist.launch --help``.

Here, or on hosts that are reached over ssh. Each process has its place in a group of its own, and a
cleaner ends what is left, however this launcher ends; on other hosts ``ssh/keeper.py`` and
``ssh/runner.py`` do the same (expr/launchers has what ``mpirun`` does in their place). How the
processes of an engine meet is in ``starters``:

* collective: TF_CONFIG with the addresses of all workers.
* horovod: Horovod's own assignment of ranks and its rendezvous server, as in ``horovodrun``, which
  itself would listen on all networks and leave its ranks on other hosts when it is killed.
* byteps: a scheduler, servers and workers. ``bpslaunch`` would hide their exit codes.
* mpi, horovod-mpi: ``mpirun`` does all of it (``ssh/mpirun.py``).
"""

import argparse
import os
import shlex
import sys
import time
from contextlib import ExitStack, closing
from itertools import cycle, islice

from ooodist.engines.kinds import launched_as
from ooodist.engines.kinds.mpi import Mpi
from ooodist.errors import UserError
from ooodist.launcher import environment, private_network, restarts
from ooodist.launcher.arguments import (
    add_number,
    check_command,
    count,
    current_folder,
    engines,
    log_folder,
    new_parser,
    parse,
    reporting,
)
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.environment import Places, Process
from ooodist.launcher.host import Host
from ooodist.launcher.output import Output
from ooodist.launcher.restarts import Ended
from ooodist.launcher.ssh import mpirun
from ooodist.launcher.ssh.listed import LOOPBACK, first_workers, read_hosts
from ooodist.launcher.ssh.places import Wanted, find_places
from ooodist.launcher.ssh.preflight import Way
from ooodist.launcher.supervise import Signals, Supervisor, finish
from ooodist.util.channel import open_closed_streams
from ooodist.util.cores import shares
from ooodist.util.quantity import counted

RESTART = "OOODIST_RESTART"  # the number of the restart, for the workers
DESCRIPTION = """\
Start the processes of one training job, here or on hosts that ssh reaches without a question; show
their output with the rank in front, and end all of them when one fails. Nothing is left behind on
any host: no process, temporary folder or shared memory, not even if this launcher is killed.

A process that is stopped (SIGSTOP, Ctrl-Z) for 5 s is named and killed, as the others wait for it.
Where all workers of this machine are stopped, the job is paused and may go on at any time; on other
hosts, and with mpirun, it ends then, too. A debugger may stop a process for longer.

Without --hosts, nothing of a job listens outside this machine's loopback network. TensorFlow's own
server (collective) and mpirun (mpi, horovod-mpi) would listen everywhere, and the former lets
anybody run programs as you; so with these engines the workers get a network of their own: they
reach each other, and nothing else.

With --hosts, a check comes first, on all hosts at the same time: they answer, have free ports, the
same versions of Python, ooodist, TensorFlow and the engine, and the files named in the command."""
EXAMPLES = """\
Every worker finds its place in OOODIST_ENGINE, OOODIST_RANK, OOODIST_SIZE, OOODIST_LOCAL_RANK and
OOODIST_LOCAL_SIZE (mpirun: in its own variables), and in the variables of its engine; TMPDIR is a
folder that is removed with the job. Everything else of this environment is passed on as it is, to
other hosts through ssh and not in command lines.

exit code: 0 if all workers ended with 0, else that of the process that failed first; 128 + n if
signal n ended it or this launcher; 124 if --timeout was reached; 2 for wrong use.

examples:
  # two workers, TensorFlow's own collectives (nothing to build)
  python -m ooodist.launch -np 2 --engine collective -- python -m ooodist.train --config digits.yaml

  # four workers and two servers, a log file for each, one hour at most
  python -m ooodist.launch -np 4 --engine byteps --servers 2 --output logs --timeout 3600 \\
      -- python -m ooodist.train --config digits.yaml

  # four workers on two hosts, started again up to five times, also with two workers if need be
  python -m ooodist.launch --engine horovod --hosts a:2,b:2 --restarts 5 --min-workers 2 \\
      -- python -m ooodist.train --config digits.yaml

  # a pipeline on the hosts of a file (lines such as `a:2`, or `a slots=2`); what would be started?
  python -m ooodist.launch --engine mpi --hosts hosts.txt --dry-run -- python -m ooodist.train \\
      --config gpt.yaml --set 'parallel={pipeline: 4, microbatches: 8}'
"""


def main(arguments: list[str]) -> int:
    """Runs one job and returns the exit code."""
    open_closed_streams()
    options, command = _parse(arguments)
    return reporting(lambda: _launch(options, command))


def _launch(options: argparse.Namespace, command: list[str]) -> int:
    launch = _Launch(options, command)
    with closing(launch):
        return restarts.run(launch.run, options.restarts or 0, launch.output)


class _Launch:
    """A launch of one job, with its restarts."""

    def __init__(self, options: argparse.Namespace, command: list[str]) -> None:
        self._options = options
        self._command = command
        self._wanted = _wanted(options)
        self._way = Way(tuple(shlex.split(options.ssh)), options.python, current_folder())
        if self._wanted is None:
            check_command(command)
        self.output = Output(log_folder(options.log_dir))
        self._signals: Signals | None = None
        if self._wanted is None and options.num_workers > 1 and _danger(options.engine):
            _close_network(self.output, options.engine, share=options.share_network)

    def run(self, restart: int) -> Ended:
        """Runs the job once; ``restart`` is 0 at first."""
        options = self._options
        os.environ[RESTART] = str(restart)
        with Cleaner() as cleaner, ExitStack() as resources:
            places = self._places(restart > 0, cleaner, resources)
            processes = self._processes(places, restart, cleaner, resources)
            if options.dry_run:
                for process in processes:
                    print(process)
                if inherited := environment.inherited_settings():
                    print(f"all: {shlex.join(inherited)}")
                return Ended(0, "", 0.0)
            # Made once: a signal between two starts counts.
            self._signals = self._signals or Signals()
            if (number := self._signals.look()) is not None:
                return Ended(128 + number, "", 0.0)
            supervisor, started = Supervisor(cleaner, self.output, self._signals), time.monotonic()
            code = supervisor.run(processes, options.timeout)
            return Ended(code, supervisor.failure, time.monotonic() - started)

    def close(self) -> None:
        """Lets go of the signals, and gives what was said last some time to be read."""
        if self._signals:
            finish(self.output, self._signals, time.monotonic())
            self._signals.close()

    def _places(self, is_restart: bool, cleaner: Cleaner, resources: ExitStack) -> Places:
        options = self._options
        if self._wanted is None:
            number = options.num_workers
            shares: list[tuple[int, ...]] = _split_cores(number) if options.bind else [()] * number
            workers = [Host(cores=cores) for cores in shares]
            return Places(workers, servers=[Host()] * (_number(options.servers) or 1))
        places, out = find_places(
            self._wanted,
            self._way,
            options.engine,
            self._command,
            cleaner,
            resources,
            is_restart=is_restart,
        )
        for message in out:
            self.output.say(f"without {message}")
        names = ", ".join(dict.fromkeys(host.name for host in places.workers))
        self.output.say(f"{counted(len(places.workers), 'worker')} on {names}")
        if not is_restart and (danger := _danger(options.engine)):
            self.output.say(f"{danger}. Use a network that others cannot reach")
        return places

    def _processes(
        self, places: Places, restart: int, cleaner: Cleaner, resources: ExitStack
    ) -> list[Process]:
        options, command, workers = self._options, self._command, places.workers
        if restart:
            wanted = options.num_workers if self._wanted is None else self._wanted.workers
            command = restarts.resuming(command, None if len(workers) == wanted else len(workers))
        if mpirun.starts(options.engine):
            folder = cleaner.new_folder()
            return [mpirun.process(options.engine, command, workers, self._way, folder)]
        return environment.processes(options.engine, command, places, cleaner, resources)


def _wanted(options: argparse.Namespace) -> Wanted | None:
    """What is wanted of other hosts; None for a job on this machine alone."""
    if options.hosts is None:
        return None
    hosts = read_hosts(options.hosts)
    workers = options.num_workers or len(hosts)
    if len({*hosts}) == 1 and hosts[0] in LOOPBACK:
        options.num_workers = len(first_workers(hosts, workers))
        return None
    if launched_as(options.engine).is_alone:
        raise UserError(
            f"--engine {options.engine} is one process; leave out --hosts, or take another engine"
        )
    if mpirun.starts(options.engine) and any("@" in name for name in hosts):
        raise UserError(
            f"--hosts {options.hosts}: mpirun takes no user@host; name the user in ~/.ssh/config"
        )
    servers: list[str] = []
    if number := _number(options.servers):
        servers = list(islice(cycle(dict.fromkeys(hosts)), number))
    elif options.servers is not None:
        servers = read_hosts(options.servers)
    return Wanted(hosts, workers, servers, options.min_workers or workers)


def _number(servers: str | None) -> int | None:
    return int(servers) if servers is not None and servers.isdigit() else None


def _close_network(output: Output, engine: str, *, share: bool) -> None:
    """Moves the job into a network of its own, and says what follows from that or its absence."""
    danger = _danger(engine)
    if share:
        output.say(f"{danger}. That is what --share-network asks for")
        return
    try:
        private_network.enter()
    except OSError as error:
        output.say(
            f"{danger}. This system allows no network of the job's own ({error.strerror}). Take "
            "--engine horovod or byteps, which listen on loopback alone, or keep others out by a "
            "firewall"
        )
    else:
        output.say(
            "the workers have a network of their own, without the internet (--share-network, or "
            "another engine: with it)"
        )


def _danger(engine: str) -> str:
    """What others can do who reach its ports, as it listens on all networks; "": it does not."""
    return Mpi.danger if mpirun.starts(engine) else launched_as(engine).danger


def _split_cores(num_workers: int) -> list[tuple[int, ...]]:
    cores = os.sched_getaffinity(0)
    if num_workers > len(cores):
        raise UserError(
            f"--bind with -np {num_workers}: there are only {len(cores)} cores; "
            "give each worker at least one, or leave out --bind"
        )
    return shares(cores, num_workers)


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    usage = "%(prog)s -np N"
    parser = new_parser("python -m ooodist.launch", DESCRIPTION, EXAMPLES, usage, engines())
    add_number(parser)
    _add_places(parser)
    parser.add_argument(
        "--restarts",
        metavar="N",
        type=count,
        help="when the job fails, start it again up to N times, from its newest checkpoint; not "
        "after exit code 2, which a person has to put right, nor when it fails "
        f"{restarts.SAME_FAILURES} times in a row in the same way within "
        f"{restarts.QUICK_SECONDS:g} s",
    )
    parser.add_argument(
        "--min-workers",
        metavar="M",
        type=count,
        help="with --hosts: at a restart do with the hosts that answer, if they take M workers; a "
        "host that is back is taken in at the next restart (default: all must answer)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="make all checks, print the commands with the variables that are set, start nothing",
    )
    options, command = parse(parser, arguments)
    if options.share_network and not _danger(options.engine):
        listening = ", ".join(engine for engine in engines() if _danger(engine))
        parser.error(
            f"--share-network is for --engine {listening}; {options.engine} always shares it"
        )
    for name, value in (("--bind", options.bind), ("--share-network", options.share_network)):
        if value and options.hosts is not None:
            parser.error(f"{name} is for one machine; leave it out with --hosts")
    if options.bind and mpirun.starts(options.engine):
        parser.error(f"--bind: with --engine {options.engine}, mpirun places the workers")
    if options.servers and options.hosts is None and not _number(options.servers):
        parser.error(f"--servers {options.servers} is not a number; hosts need --hosts as well")
    if options.min_workers and not (options.hosts and options.restarts):
        parser.error("--min-workers is for restarts on several hosts: give --hosts and --restarts")
    if options.min_workers and launched_as(options.engine).runs_pipelines:
        parser.error("--min-workers: the stages of a pipeline need all workers; leave it out")
    return options, command


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hosts",
        metavar="HOSTS",
        help="a:2,b:2 or a file with a host a line: hosts, and how many workers each takes",
    )
    parser.add_argument(
        "--ssh",
        metavar="COMMAND",
        default="ssh",
        help="how to call ssh, as 'ssh -F config' (default: %(default)s)",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        default=sys.executable,
        help="Python with ooodist on the hosts (default: %(default)s)",
    )
    parser.add_argument(
        "--servers",
        metavar="S",
        help="of byteps: the number of servers (default: 1, or one a host), or hosts as in --hosts",
    )
    parser.add_argument(
        "--bind",
        action="store_true",
        help="give each worker its own equal share of the cores from the start (workers of ooodist "
        "take theirs by themselves: see OOODIST_CORES; other programs use all)",
    )
    parser.add_argument(
        "--share-network",
        action="store_true",
        help="leave the workers in this machine's network, for data from the internet, say, even "
        "if the engine then listens on all networks",
    )
