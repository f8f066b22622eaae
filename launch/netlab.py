"""Starts a training job on hosts of an emulated network: ``python launch/netlab.py --help``."""

import argparse
import sys
from contextlib import ExitStack

import environment
from arguments import check_command, count, log_folder, new_parser, parse, reporting
from lab import Lab
from output import Output
from supervise import Supervisor

DESCRIPTION = """\
Start one training job on N hosts of an emulated network on this machine: a worker a host, each on a
core of its own. Root only. Nothing is left behind, not even if this launcher is killed."""
EXAMPLES = """\
examples:
  # two workers joined by 250 Mbit/s
  python launch/netlab.py -np 2 --engine horovod --rate 250Mbit \\
      -- python -m ooodist.train --config digits.yaml
"""


def main(arguments: list[str]) -> int:
    """Runs one job and returns the exit code."""
    options, command = _parse(arguments)
    return reporting(lambda: _launch(options, command))


def _launch(options: argparse.Namespace, command: list[str]) -> int:
    check_command(command)
    lab = Lab(options.num_workers, options.rate, options.delay, options.cores)
    output = Output(log_folder(options.log_dir))
    supervisor = Supervisor(lab.cleaner, output)  # from here on a signal ends the job in order
    with lab, ExitStack() as resources:
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
    parser = new_parser("launch/netlab.py", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--rate", required=True, help="of each host's link, each way: 250Mbit, 1.5Gbit"
    )
    parser.add_argument(
        "--delay", metavar="TIME", help="from host to host, as 1ms; needs a kernel with netem"
    )
    parser.add_argument(
        "--servers", metavar="S", type=count, help="number of byteps servers (default: one a host)"
    )
    parser.add_argument(
        "--cores",
        metavar="LIST",
        type=_cores,
        help="worker i runs on core i of this list, as 0,1, or begins it anew (default: all)",
    )
    return parse(parser, arguments)


def _cores(text: str) -> list[int]:
    if not all(part.isascii() and part.isdigit() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of core numbers, as 0,1")
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
