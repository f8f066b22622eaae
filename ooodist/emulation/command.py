"""Runs ``mpirun -np 8 python -m ooodist.train --config job.yaml --emulate costs.yaml``.

Rank 0 reads the files and plans; the others wait for its plan, so that an error is reported once.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ooodist.config import job as job_file
from ooodist.emulation.emulate import Emulation, emulate, stretched
from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import from_csv, to_csv
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.layer_costs import read_model_costs
from ooodist.planner.pipeline.plan import make_plan
from ooodist.settings.sections import ParallelConfig
from ooodist.util import yaml_dataclass
from ooodist.util.program import CRASH_CODE, INTERRUPTED_CODE, USER_ERROR_CODE, print_error
from ooodist.util.quantity import counted

if TYPE_CHECKING:
    from ooodist.engines.communicator import Communicator

logger = logging.getLogger("ooodist")

LEAST_SECONDS = 10e-3  # of an action, on average; far more than waking up and messages take
LINGER_SECONDS = 1.0  # before a rank aborts all: messages of others may be in transit


@dataclass(frozen=True)
class Emulated:
    """The schedule that all ranks carry out, with its costs.

    Attributes:
        name: the name of the schedule.
        schedule: the schedule as CSV text.
        costs: costs of its stages, stretched.
        factor: by how much they are stretched.
        timeout: seconds that a rank waits for a message; None: 60.
    """

    name: str
    schedule: str
    costs: PipelineCosts
    factor: float
    timeout: float | None


def run(config: Path | None, overrides: Sequence[str], costs: Path) -> int:
    """Plans, emulates and prints the result; called on all ranks.

    Args:
        config: job file, of which only ``parallel`` and ``timeout`` are used.
        overrides: overrides of its keys, as ``key.key=value``.
        costs: file of a :class:`ooodist.planner.pipeline.layer_costs.ModelCosts`.

    Returns:
        the exit code, unless the process was aborted because others may not arrive.
    """
    try:
        from ooodist.engines.communicator import Communicator
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI
        print_error(f"--emulate needs MPI ({error}); run ooodist-engines mpi")
        return USER_ERROR_CODE
    world = Communicator.of_all()
    logger.setLevel(logging.WARNING if world.rank else logging.INFO)
    try:
        plan = _plan(world.size, config, overrides, costs) if world.rank == 0 else None
        agreed = _agree(world, plan)
        schedule = from_csv(agreed.schedule, agreed.name)
        result = emulate(world, schedule, agreed.costs, timeout=agreed.timeout)
        if result is not None:
            print(text(result, agreed.factor), flush=True)
    except UserError as error:
        return _end(world, str(error), USER_ERROR_CODE)
    except KeyboardInterrupt:
        return _end(world, "interrupted", INTERRUPTED_CODE)
    except Exception:
        traceback.print_exc()
        world.abort(CRASH_CODE)
    return 0


def text(result: Emulation, factor: float = 1.0) -> str:
    """Formats what was measured beside what was simulated.

    Args:
        result: made from stretched costs.
        factor: by how much; the text has the milliseconds of the devices.
    """
    simulated, measured = result.simulated, result.measured
    scale = 1e3 / factor
    idle = [1 - busy / measured.makespan for busy in measured.busy]
    lines = [
        ("schedule", result.schedule.name),
        ("simulated step", f"{simulated.step_seconds * scale:.2f} ms"),
        (
            "measured step",
            f"{result.median * scale:.2f} ms, the median of {len(result.seconds)} "
            f"({min(result.seconds) * scale:.2f} to {max(result.seconds) * scale:.2f})",
        ),
        ("error of the simulation", f"{result.error:+.2%}"),
        ("simulated bubble", f"{simulated.bubble:.1%}"),
        ("measured bubble", f"{measured.bubble:.1%}"),
        ("idle, of each rank", " ".join(f"{share:.1%}" for share in idle)),
        ("overhead of an action", f"{result.overhead * 1e3:.3f} ms, as it passed here"),
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines)


def _plan(processes: int, config: Path | None, overrides: Sequence[str], file: Path) -> Emulated:
    """Plans for this many processes. Raises UserError."""
    parallel, timeout = job_file.load_parallel(config, overrides)
    _check(parallel, processes)
    costs = read_model_costs(file, "--emulate")
    if parallel.memory_bytes is not None:
        costs = replace(costs, memory_limit=parallel.memory_bytes)
    logger.info(
        "this is an emulation of %d devices with the costs of %s: ranks wait instead of computing; "
        "schedule, MPI and messages are real. Nothing is trained, and model, data and optimizer of "
        "the job play no part",
        *(processes, file),
    )
    plan = make_plan(
        costs, parallel.pipeline, parallel.microbatches, parallel.schedule, parallel.chunks
    )
    logger.info(
        "schedule %s: %s, %s, a step of %.1f ms",
        plan.schedule.name,
        counted(plan.schedule.stages, "stage"),
        counted(plan.schedule.microbatches, "micro-batch", "es"),
        plan.timeline.step_seconds * 1e3,
    )
    factor = _factor(plan.costs)
    if factor > 1:
        logger.info(
            "all seconds are stretched %.4g-fold, so that F, I and W take %g ms on average, long "
            "against what is waited for a core here; what is printed are the devices' own",
            *(factor, LEAST_SECONDS * 1e3),
        )
    return Emulated(
        plan.schedule.name,
        to_csv(plan.schedule),
        stretched(plan.costs, factor),
        factor,
        timeout,
    )


def _factor(costs: PipelineCosts) -> float:
    """The factor by which seconds must be stretched to be long enough here; at least 1."""
    seconds = [
        stage.forward + stage.input_gradient + stage.weight_gradient for stage in costs.stages
    ]
    return max(1.0, LEAST_SECONDS * 3 * len(seconds) / sum(seconds)) if any(seconds) else 1.0


def _check(parallel: ParallelConfig, processes: int) -> None:
    """Raises UserError unless this many processes can emulate such a job."""
    if parallel.devices is not None:
        raise UserError(
            f"parallel.devices is {parallel.devices}, but --emulate is of one pipeline; add --set "
            f"parallel.devices=null --set parallel.pipeline={processes}"
        )
    if parallel.data != 1:
        raise UserError(
            f"parallel.data is {parallel.data}, but --emulate is of one pipeline, whose replicas "
            "would all do the same; add --set parallel.data=1"
        )
    if parallel.split is not None:
        raise UserError(
            f"parallel.split is {', '.join(parallel.split)}, but --emulate balances the stages by "
            "the costs of its file; add --set parallel.split=null"
        )
    if parallel.costs is not None:
        raise UserError(
            f"parallel.costs is {parallel.costs}, but --emulate is given the file with the costs "
            "itself; add --set parallel.costs=null"
        )
    if parallel.recompute:
        raise UserError(
            "parallel.recompute is true, but --emulate takes the costs of its file as they are; "
            "write those with recomputation into it, and add --set parallel.recompute=false"
        )
    if processes != parallel.pipeline:
        raise UserError(
            f"parallel.pipeline is {parallel.pipeline}, but the number of processes is "
            f"{processes}; start as many as the pipeline has ranks, as mpirun -np "
            f"{parallel.pipeline} python -m ooodist.train ... (with --oversubscribe for more than "
            "there are cores)"
        )


def _agree(world: Communicator, plan: Emulated | None) -> Emulated:
    """Rank 0's plan on all ranks; sent as YAML, which cannot contain code that runs."""
    text = "" if plan is None else yaml_dataclass.dump(plan)
    return yaml_dataclass.read_text(Emulated, world.broadcast_text(text), "what rank 0 sent")


def _end(world: Communicator, message: str, code: int) -> int:
    """Ends all ranks; returns the code if there are no others."""
    print_error(message)
    if world.size > 1:
        time.sleep(LINGER_SECONDS)
        world.abort(code)
    return code
