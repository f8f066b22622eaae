"""Starts a training job on hosts of an emulated network: ``python launch/netlab.py --help``.

Overlap of computation and exchange shows only if the exchange takes time, which it hardly does
between processes of one machine. Here each worker has a host of its own, joined to the others by a
network of a given rate, all of it on this machine: network namespaces, veth pairs, a bridge, and
``tc`` to limit the rate (``network.py``, ``shaping.py``; ``cable.py`` adds delays). Linux and
root only; in a container, a privileged one. Debian: ``apt-get install iproute2``.

    host0  10.77.0.1  core 0      worker 0, BytePS's scheduler, server 0
    host1  10.77.0.2  core 1      worker 1, server 1
    host2  10.77.0.3  core 0      worker 2, server 2: cores are reused, and the output says so
    switch 10.77.255.254          Horovod's rendezvous server, which belongs to the launcher

Everything that a host does runs on its core: computing, summing, and most of TCP. So the exchange
costs the CPU what it costs on a real host, besides the time on the wire. Use models and rates with
which the cores' part of it is small.

Experiments that start several jobs in one network, run them in turns or change the rate use
``Lab`` of ``network.py``:

    from expr.lab.network import Lab

    with Lab(num_hosts=2, rate="250Mbit") as lab:
        baseline = lab.start("horovod", [sys.executable, "baseline.py"], Path("logs/baseline"))
        baseline.pause()
        planned = lab.start("byteps", [sys.executable, "planned.py"], Path("logs/planned"),
                            variables={"BYTEPS_PARTITION_BYTES": "1048576"})
        ...
        planned.pause()
        baseline.resume()
        lab.set_rate("500Mbit")
        if baseline.wait(timeout=600) != 0:
            print(baseline.failure)

To run a process on host i of a running network, and look around: ``ip netns list`` has the names,
and ``ip netns exec NAME bash`` is a shell there.
"""

import argparse
from contextlib import ExitStack, closing

from expr.lab.network import Lab
from ooodist.launcher import environment
from ooodist.launcher.arguments import (
    add_number,
    check_command,
    count,
    engines,
    log_folder,
    new_parser,
    parse,
    reporting,
)
from ooodist.launcher.output import Output
from ooodist.launcher.supervise import Signals, Supervisor
from ooodist.util.channel import open_closed_streams

DESCRIPTION = """\
Start one training job on N hosts of an emulated network on this machine: worker i on host i, which
is bound to one core. Every host has its own name (host0, host1, ...), address and link to a switch;
the link has the given rate each way. A host reaches the other hosts, but neither this machine nor
the internet; files are those of this machine. Needs root, and iproute2 (ip, tc).

Nothing is left behind: no process, network, temporary folder or shared memory, not even if this
launcher is killed. Several may run at a time."""
EXAMPLES = """\
Workers get the same variables as from ooodist.launch, and the exit code has the same meaning.

examples:
  # two workers joined by 250 Mbit/s
  python launch/netlab.py -np 2 --engine horovod --rate 250Mbit \\
      -- python -m ooodist.train --config digits.yaml

  # four workers, a server beside each of the first two, on cores 2 to 5
  python launch/netlab.py -np 4 --engine byteps --servers 2 --rate 1Gbit --cores 2,3,4,5 \\
      -- python -m ooodist.train --config digits.yaml

  # a slow and distant network, for an hour at most
  python launch/netlab.py -np 2 --engine collective --rate 100Mbit --delay 2ms --timeout 3600 \\
      --log-dir logs -- python -m ooodist.train --config digits.yaml
"""


def main(arguments: list[str]) -> int:
    """Runs one job and returns the exit code."""
    open_closed_streams()
    options, command = _parse(arguments)
    return reporting(lambda: _launch(options, command))


def _launch(options: argparse.Namespace, command: list[str]) -> int:
    check_command(command)
    lab = Lab(options.num_workers, options.rate, options.delay, options.cores)
    output = Output(log_folder(options.log_dir))
    signals = Signals()  # from here on a signal ends the job cleanly
    supervisor = Supervisor(lab.cleaner, output, signals)
    with closing(signals), lab, ExitStack() as resources:
        if options.num_workers > len(lab.cores):
            output.say(
                f"{options.num_workers} workers share the cores {lab.cores}: while one computes, "
                "another waits"
            )
        processes = environment.processes(
            options.engine, command, lab.places(options.servers), lab.cleaner, resources
        )
        return supervisor.run(processes, options.timeout)


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    usage = "%(prog)s -np N"
    parser = new_parser("launch/netlab.py", DESCRIPTION, EXAMPLES, usage, engines())
    add_number(parser)
    parser.add_argument(
        "--rate", required=True, help="of each host's link, each way, as 250Mbit or 1.5Gbit"
    )
    parser.add_argument("--delay", metavar="TIME", help="from one host to another, as 1ms")
    parser.add_argument(
        "--servers", metavar="S", type=count, help="number of byteps servers (default: one a host)"
    )
    parser.add_argument(
        "--cores",
        metavar="LIST",
        type=_cores,
        help="cores such as 0,1: worker i runs on the i-th, and they are begun anew if there are "
        "fewer than workers (default: all that this launcher may use)",
    )
    return parse(parser, arguments)


def _cores(text: str) -> list[int]:
    if not all(part.isascii() and part.isdigit() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of core numbers, as 0,1")
    return [int(part) for part in text.split(",")]
