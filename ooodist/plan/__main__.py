"""Plans a job, predicts its steps and draws them, without training (``python -m ooodist.plan``)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from ooodist.config import job as job_file
from ooodist.errors import UserError
from ooodist.plan import data_parallel, pipelines
from ooodist.plan.options import parse
from ooodist.util import program
from ooodist.util.program import refuse_given, refused


def main(arguments: Sequence[str]) -> int:
    """Plans what a command line asks for and returns the exit code."""
    try:
        options = parse(arguments)
        if options.costs is not None:
            refuse_given(
                options,
                ("--config", "--set", "--profile"),
                f"--costs {options.costs} takes the place of measuring a job, so {{}} has no "
                "meaning; leave out the one or the other",
            )
            pipelines.check_kind_of_costs(options)
            kind = pipelines if pipelines.has_pipeline(options) else data_parallel
            code, text = 0, kind.plan_costs(options)
        else:
            config = job_file.load(options.config, options.set)
            kind = pipelines if pipelines.is_asked_for(options, config) else data_parallel
            code, text = kind.plan_job(options, config)
    except UserError as error:
        return refused(error)
    if text:
        print(text, flush=True)
    return code


command = functools.partial(program.run, main)  # ooodist-plan

if __name__ == "__main__":
    sys.exit(command())
