"""``python -m ooodist.train``: runs a training job from a YAML file; see ``--help``."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ooodist.config import job as job_file
from ooodist.config.job import Config
from ooodist.engines.kinds import names
from ooodist.errors import UserError
from ooodist.settings.sections import OrderConfig
from ooodist.util import program
from ooodist.util.packages import importing_tensorflow
from ooodist.util.program import Parser, refuse_given, refused

EXAMPLES = """\
examples:
  # the default job, ResNet-20 on handwritten digits, in this one process
  python -m ooodist.train

  # two workers on this machine, TensorFlow's own collectives (nothing to build)
  python -m ooodist.launch -np 2 --engine collective -- python -m ooodist.train --config job.yaml

  # on hosts that ssh reaches, and again from the newest checkpoint when something fails
  python -m ooodist.launch --engine horovod --hosts a:2,b:2 --restarts 5 \\
      -- python -m ooodist.train --config job.yaml

  # Horovod with its own launcher, over gloo or over MPI
  horovodrun -np 2 python -m ooodist.train --config job.yaml
  horovodrun -np 2 --mpi python -m ooodist.train --config job.yaml

  # BytePS: all processes of a job on this machine, or with BytePS' own launcher on each host
  python -m ooodist.launch -np 2 --engine byteps -- python -m ooodist.train --config job.yaml
  bpslaunch python3 -m ooodist.train --config job.yaml

  # let the planner find the order, or carry out a plan that was made before
  python -m ooodist.launch -np 2 --engine horovod -- python -m ooodist.train \\
      --config job.yaml --set order.name=planned
  python -m ooodist.launch -np 2 --engine horovod -- python -m ooodist.train \\
      --config job.yaml --plan plans/plan.yaml

  # how long a step of a pipeline would take on eight devices that one does not have
  mpirun -np 8 --oversubscribe python -m ooodist.train --config job.yaml --emulate costs.yaml

  # other settings for once, and going on after an interruption
  python -m ooodist.train --config job.yaml --set batch=32 --set optimizer.learning_rate=1e-3
  python -m ooodist.train --config job.yaml --resume

All keys with their defaults: python -m ooodist.train --print-config
exit code: 0 when the training is complete, 2 for what you can put right, 143 when SIGTERM has ended
it, after a checkpoint, 1 for anything else.
"""


def main(arguments: Sequence[str]) -> int:
    """Runs the job of the given command line and returns the exit code."""
    try:
        options = _parse(arguments)
        if options.emulate is not None:
            _check_emulate(options)
            from ooodist.emulation import command as emulation

            return emulation.run(options.config, options.overrides, options.emulate)
        config = _config(options)
        if options.print_config:
            print(job_file.to_yaml(config), end="")
            return 0
        # Imported late, because TensorFlow takes seconds to load.
        with importing_tensorflow():
            from ooodist.job import run as job
    except UserError as error:
        return refused(error)
    return job.run(config)


def _check_emulate(options: argparse.Namespace) -> None:
    """Raises UserError for options that an emulation would silently ignore."""
    refuse_given(
        options,
        ("--engine", "--output", "--plan", "--profile", "--resume", "--print-config"),
        "--emulate trains nothing, so {} has no effect; leave it out",
    )


def _config(options: argparse.Namespace) -> Config:
    config = job_file.load(options.config, options.overrides)
    if options.engine is not None:
        config = replace(config, engine=options.engine)
    if options.output is not None:
        config = replace(config, output=options.output)
    if options.plan is not None:
        order = OrderConfig(name="planned", plan=str(options.plan))
        config = replace(config, order=order, steps_per_execution=None)
    if options.profile:
        config = replace(config, planning=replace(config.planning, profile_anew=True))
    if options.resume:
        config = replace(config, checkpoint=replace(config.checkpoint, resume=True))
    return config


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m ooodist.train",
        description="Train a model on one or more workers, from a YAML file.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML file of the job")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="override a key, as optimizer.momentum=0.9; may be repeated",
    )
    parser.add_argument(
        "--engine",
        choices=("auto", *names()),
        help="overrides the key engine; auto: by how the process was launched",
    )
    parser.add_argument("--output", metavar="DIR", help="overrides the key output")
    parser.add_argument(
        "--plan",
        metavar="FILE",
        type=Path,
        help="carry out this plan of python -m ooodist.plan; overrides the key order",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="for order planned: measure anew, even if there is a profile that fits",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint in the output"
    )
    parser.add_argument(
        "--emulate",
        metavar="FILE",
        type=Path,
        help="wait instead of computing, as long as this YAML file of the layers' costs says; all "
        "else of the key parallel is real",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print all keys as they would be used, and end"
    )
    return parser.parse_args(arguments)


command = functools.partial(program.run, main)  # ooodist-train

if __name__ == "__main__":
    sys.exit(command())
