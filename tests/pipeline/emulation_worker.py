"""Ranks that wait instead of computing: ``mpirun -np 4 python emulation_worker.py ...``.

::

    measure M STEPS S ...   steps of M micro-batches under each of the schedules S; rank 0 prints a
                            line of JSON for each
    program ARGUMENTS       python -m ooodist.train ARGUMENTS; says if TensorFlow was imported
"""

from __future__ import annotations

import json
import logging
import sys
import time

from mpi4py import MPI

from ooodist import train
from ooodist.pipeline.emulation import emulate
from ooodist.schedule.layer_costs import LayerCost, Link, ModelCosts
from ooodist.schedule.pipeline_plan import make_plan


def costs(layers: int) -> ModelCosts:
    """Layers that differ, an update, and links that take their time."""
    return ModelCosts(
        tuple(
            LayerCost(
                f"layer_{number}",
                forward=0.006 + 0.001 * (number % 3),
                input_gradient=0.008,
                weight_gradient=0.005,
                update=0.002,
                sent_bytes=100_000 + number,
            )
            for number in range(layers)
        ),
        Link(latency=0.001, seconds_per_byte=2e-8),
    )


def measure(microbatches: int, steps: int, names: list[str]) -> None:
    world = MPI.COMM_WORLD
    for name in names:
        plan = make_plan(costs(2 * world.size), world.size, microbatches, name)
        result = emulate(world, plan.schedule, plan.costs, steps=steps)
        if world.rank:
            assert result is None
            continue
        assert result is not None
        assert result.simulated == plan.timeline
        orders = tuple(tuple(run.action for run in runs) for runs in result.measured.runs)
        assert orders == plan.schedule.actions
        line = {
            "schedule": name,
            "simulated": result.simulated.step_seconds,
            "seconds": result.seconds,
            "bubbles": [result.simulated.bubble, result.measured.bubble],
            "overhead": result.overhead,
        }
        print(json.dumps(line), flush=True)


def program(arguments: list[str]) -> int:
    logging.basicConfig(format="ooodist: %(message)s")
    code = train.main(arguments)
    heavy = {"tensorflow", "keras"} & set(sys.modules)
    print(f"imported: {sorted(heavy)}", flush=True)
    # Who ended alone would be ended by mpirun, with whatever others have to say.
    time.sleep(0.2)
    return code


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        measure(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        sys.exit(program(sys.argv[2:]))
