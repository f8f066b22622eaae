"""The command-line options of ``python -m ooodist.plan`` and parsers of their values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ooodist.engines.kinds import kinds
from ooodist.engines.kinds.horovod import Horovod
from ooodist.errors import UserError
from ooodist.planner.data_parallel.plan import RankSetting
from ooodist.planner.pipeline.plan import AUTO, NAMES
from ooodist.util import quantity
from ooodist.util.program import Parser

EXAMPLES = """\
examples:
  # this job on the workers that a launcher starts: measures the model and the network, and plans
  python -m ooodist.launch -np 2 --engine horovod -- python -m ooodist.plan --config job.yaml
  horovodrun -np 2 python -m ooodist.plan --config job.yaml --output plans
  # ... which the training then carries out
  horovodrun -np 2 python -m ooodist.train --config job.yaml --plan plans/plan.yaml

  # this job on a cluster that you do not have: measures the model here, describes the network
  python -m ooodist.plan --config job.yaml --workers 64 --bandwidth 10Gbit --latency 30us
  python -m ooodist.plan --config job.yaml --workers 16 --bandwidth 25Gbit \\
      --engine byteps --servers 16 --memory 12GiB

  # two hosts with eight devices each, that exchange gradients inside the host first
  python -m ooodist.plan --config job.yaml --hosts 2 --devices 8 --inside 1600Gbit \\
      --bandwidth 100Gbit

  # what is gained if exchanges may outlive a call, and meet the next one's forward pass
  python -m ooodist.plan --costs plans/costs.yaml --workers 8 --bandwidth 10Gbit --carried

  # ... and if gradients travel in 16 bits where they would be waited for
  python -m ooodist.plan --costs plans/costs.yaml --workers 8 --bandwidth 10Gbit --wire planned

  # many clusters, from costs that were measured before (costs.yaml is among the output)
  python -m ooodist.plan --costs plans/costs.yaml --workers 2 8 64 --bandwidth 10Gbit 100Gbit

  # the pipeline that the job's key parallel describes: measures the layers here, and shows all
  # schedules side by side; in one process, started without a launcher
  python -m ooodist.plan --config job.yaml --bandwidth 10Gbit --output plans
  # ... of which the training then takes the best
  mpirun -np 4 python -m ooodist.train --config job.yaml --set parallel.schedule=plans/schedule.csv

  # pipelines from the costs of layers that were measured before, or written by hand
  python -m ooodist.plan --costs layers.yaml --pipeline 4 --microbatches 8 --memory 12GiB
  python -m ooodist.plan --costs layers.yaml --pipeline 4 8 --microbatches 8 16 32 --chunks 1 2 \\
      --schedule auto 1f1b zb_h1
  # ... with replicas of the pipeline, which sum their gradients
  python -m ooodist.plan --costs layers.yaml --pipeline 8 --data 1 2 4 --microbatches 8 \\
      --bandwidth 100Gbit
  # ... and how best to divide 32 devices and a step's 64 micro-batches among replicas, which also
  # divide the optimizer state
  python -m ooodist.plan --costs layers.yaml --devices 32 --microbatches 64 --memory 12GiB \\
      --bandwidth 100Gbit --shard-optimizer
  # ... on hosts with several devices: also where each rank runs
  python -m ooodist.plan --costs layers.yaml --pipeline 8 --microbatches 64 \\
      --hosts 4 --devices 8 --inside 1600Gbit --bandwidth 100Gbit
  # ... against a schedule that torch.distributed.pipelining has written; it reads ours as well
  python -m ooodist.plan --costs layers.yaml --pipeline 4 --microbatches 8 \\
      --schedule auto dump.csv

exit code: 0 when the plans are written, 2 for what you can put right, 1 for anything else.
"""

ALL = "all"
DESCRIBED_ENGINES = [name for name, kind in kinds().items() if kind.sums]
DEFAULT_ENGINE = Horovod.name  # for a described cluster
DEFAULT_LATENCY = "50us"  # for described links: two hosts and a switch between them
_DEFAULT_OUTPUT = "runs"  # if there is no job with an output folder
_FOLDER_NAME = "plan"  # within the output folder
# The options with whole numbers; the least that they allow.
_LEAST = {
    "workers": 2,
    **dict.fromkeys(("hosts", "devices", "servers", "steps_per_execution"), 1),
    **dict.fromkeys(("pipeline", "data", "microbatches", "chunks"), 1),
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a command line: whole numbers, also in lists without repetitions, and bytes of memory.

    Other values are as they were given. Raises UserError.
    """
    parser = Parser(
        prog="python -m ooodist.plan",
        description="Measure a job, plan its order and exchanges, or the schedule of its pipeline, "
        "predict and draw. No training.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("--config", metavar="FILE", type=Path, help="YAML file of the job")
    add(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key of the job, such as batch=32; may be repeated",
    )
    add("--profile", action="store_true", help="measure anew, even if there is a profile that fits")
    add(
        "--costs",
        metavar="FILE",
        type=Path,
        help="costs of a step (for a pipeline, of layers), instead of measuring a job",
    )
    add(
        "--bandwidth",
        metavar="RATE",
        nargs="+",
        help="rate of each host's link, such as 10Gbit; in a pipeline, of links between ranks",
    )
    add("--latency", metavar="TIME", help=f"time from host to host (default: {DEFAULT_LATENCY})")
    add("--memory", metavar="SIZE", help="memory limit of a worker, such as 12GiB (default: none)")
    add(
        "--output",
        metavar="DIR",
        help=f"folder for the files (default: the job's output/{_FOLDER_NAME})",
    )

    add = parser.add_argument_group("data parallel").add_argument
    add("--workers", metavar="N", nargs="+", help="describe a cluster of this many workers")
    add("--hosts", metavar="H", nargs="+", help="describe a cluster of this many hosts instead")
    add(
        "--devices",
        metavar="D",
        help="devices per host, with a worker each (default: 1); with --microbatches, the devices "
        "that are to be divided into pipelines",
    )
    add("--inside", metavar="RATE", help="rate of a device's link to the others of its host")
    add(
        "--engine",
        choices=DESCRIBED_ENGINES,
        help="by default as the job says; else as the process was launched, or for a described "
        f"cluster {DEFAULT_ENGINE}",
    )
    add(
        "--servers",
        metavar="S",
        help="BytePS: servers on hosts of their own (default: beside the workers)",
    )
    add("--steps-per-execution", metavar="MOST", help="most steps traced into one function")
    add(
        "--wire",
        choices=("float16", "bfloat16", "planned"),
        help="also find the best plan that sends gradients in 16 bits: all, or (planned) those "
        "that would be waited for, in float16 (default: the job's exchange.wire)",
    )
    add(
        "--low-rank",
        metavar="RANK",
        help="also find the best plan that sends gradients as two thin matrices: all, of so many "
        "columns, or (auto) those that would be waited for, of as many as there is time for "
        "(default: the job's exchange.low_rank)",
    )
    add(
        "--carried",
        action="store_true",
        help="also find the best plan that leaves exchanges to the next call, where each layer "
        "waits for its own alone; the best plan of all is written",
    )

    add = parser.add_argument_group("pipelines; by default as the job's parallel says").add_argument
    add("--pipeline", metavar="P", nargs="+", help="ranks")
    add("--data", metavar="R", nargs="+", help="replicas of the pipeline, on different samples")
    add(
        "--shard-optimizer",
        action="store_true",
        help="replicas divide the optimizer state among each other",
    )
    add(
        "--microbatches",
        metavar="M",
        nargs="+",
        help="micro-batches per step and pipeline; with --devices, of all replicas together",
    )
    add("--chunks", metavar="V", nargs="+", help="stages per rank (default: as usual)")
    add(
        "--schedule",
        metavar="NAME",
        nargs="+",
        help=f"{AUTO}, {', '.join(NAMES)}, or CSV files, which may be PyTorch's "
        f"(torch.distributed.pipelining); default: {ALL} with a name",
    )
    given = dict(vars(parser.parse_args(arguments)))
    for key, least in _LEAST.items():
        name, value = f"--{key.replace('_', '-')}", given[key]
        if isinstance(value, list):
            numbers = [whole_number(text, name, least=least) for text in value]
            given[key] = list(dict.fromkeys(numbers))
        elif value is not None:
            given[key] = whole_number(value, name, least=least)
    given["memory"] = given["memory"] and parse_memory(given["memory"])
    given["low_rank"] = parse_low_rank(given["low_rank"])
    return argparse.Namespace(**given)


def output_of(options: argparse.Namespace, output: str = _DEFAULT_OUTPUT) -> Path:
    """The folder for the files; by default in the output folder of a job."""
    return Path(options.output or Path(output) / _FOLDER_NAME)


def joined(values: Sequence[object]) -> str:
    """The values of an option, as they were given."""
    return " ".join(map(str, values))


def parse_low_rank(text: str | None) -> RankSetting:
    """The value of --low-rank. Raises UserError."""
    if text is None or text == "auto":
        return None if text is None else "auto"
    return whole_number(text, "--low-rank", least=1)


def parse_memory(text: str) -> int:
    """The bytes of a text such as ``12GiB``. Raises UserError."""
    return int(quantity.read(text, "--memory", quantity.BYTES, "12GiB", positive=True))


def whole_number(text: str, name: str, *, least: int) -> int:
    """Parses an integer of at least ``least``; raises UserError, which names option ``name``."""
    if not text.isdecimal() or int(text) < least:
        raise UserError(f"{name} is {text}; it must be a whole number of at least {least}")
    return int(text)
