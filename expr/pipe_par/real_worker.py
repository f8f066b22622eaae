"""One rank of real.py's job: times every schedule on the stages of a model.

    mpirun -np 2 python real_worker.py JOB.yaml ANSWER.json REPEATS MICROBATCHES ...

Micro-batches have the same size whatever their number: the batch of the job over the largest.
Schedules take turns, and in each repeat the stages are measured anew, so that a machine that
changes its speed meets all rows, and its change is seen.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ooodist import engines
from ooodist.compat.keras_model import build_with
from ooodist.config import job as job_file
from ooodist.settings.sections import ParallelConfig
from ooodist.util.patience import Patience

TIMEOUT = 300.0
# For each way of placing stages on ranks, a schedule that has it, and all schedules of it.
PLACEMENTS = {
    "one stage a rank": ("1f1b", ["gpipe", "1f1b", "fast_forward", "zb_h1", "zb_h2", "auto"]),
    "two in turn": ("interleaved", ["gpipe", "interleaved", "modulo", "push", "auto"]),
    "two as a V": ("zb_v", ["zb_v", "auto"]),
}

job, answer, repeats = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
numbers = [int(text) for text in sys.argv[4:]]
config = job_file.load(job, [f"output={answer.parent}/output"])
engine = engines.init("mpi", timeout=TIMEOUT)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from ooodist.job.building import load_and_build  # noqa: E402
from ooodist.pipeline.assembly import Assembly, assemble  # noqa: E402
from ooodist.pipeline.batches import BatchSplitter  # noqa: E402
from ooodist.pipeline.planning import plan_schedule  # noqa: E402
from ooodist.pipeline.ranks import make_ranks  # noqa: E402
from ooodist.planner.pipeline.actions import COMPUTE_KINDS  # noqa: E402
from ooodist.planner.pipeline.costs import PipelineCosts  # noqa: E402
from ooodist.planner.pipeline.plan import PipelinePlan  # noqa: E402


@dataclass
class Row:
    """A schedule to time."""

    placement: str
    name: str
    microbatches: int
    plan: PipelinePlan


class Worker:
    """The stages of a model, placed in several ways."""

    def __init__(self) -> None:
        data, _, self.model = load_and_build(config, engine)
        self.batch = next(iter(data.train))
        build_with(self.model, self.batch)
        self.assemblies: dict[str, Assembly] = {}
        for placement, (name, _) in PLACEMENTS.items():
            parallel = ParallelConfig(
                pipeline=engine.size, microbatches=max(numbers), schedule=name
            )
            ranks = make_ranks(engine.world, engine.size, 1)
            self.assemblies[placement] = assemble(
                self.model, self.batch, parallel, ranks, engine, Patience(TIMEOUT)
            )
        self.plans = {name: assembly.plan for name, assembly in self.assemblies.items()}
        largest = self.assemblies["one stage a rank"].splitter.size
        samples = largest // max(numbers)
        self.batches = {
            number: tf.nest.map_structure(lambda x, n=number: x[: n * samples], self.batch)
            for number in numbers
        }
        self.splitters = {
            number: BatchSplitter(self.model, batch, number)
            for number, batch in self.batches.items()
        }

    def rows(self) -> list[Row]:
        """All schedules that there are, for the costs measured now."""
        found = []
        for placement, (_, names) in PLACEMENTS.items():
            plan = self.assemblies[placement].plan
            for name in names:
                for number in numbers:
                    parallel = ParallelConfig(pipeline=engine.size, schedule=name)
                    empty = replace(plan.schedule, microbatches=number)
                    made = plan_schedule(
                        replace(plan, schedule=empty),
                        plan.costs,
                        parallel,
                        engine,
                    )
                    found.append(Row(placement, name, number, made))
        return found

    def measure(self) -> dict[str, PipelineCosts]:
        """What the stages of each placement cost now, with most micro-batches."""
        for name, assembly in self.assemblies.items():
            assembly.splitter = self.splitters[max(numbers)]
            assembly.carry_out(self.plans[name])
        return {name: assembly.measure() for name, assembly in self.assemblies.items()}

    def time(self, row: Row) -> dict[str, Any]:
        """A step: seconds on the rank that takes longest, and the share in which ranks wait."""
        assembly = self.assemblies[row.placement]
        assembly.splitter = self.splitters[row.microbatches]
        assembly.carry_out(row.plan)
        engine.barrier()
        began = time.perf_counter()
        ran = assembly.step(self.batches[row.microbatches])
        seconds = time.perf_counter() - began
        computing = [each for each in ran if each.action.kind in COMPUTE_KINDS]
        busy = sum(each.end - each.start for each in computing)
        others = [each for each in ran if each.action.kind not in COMPUTE_KINDS]
        overhead = sum(each.end - each.start - each.waited for each in others)
        facts = np.array([seconds, max(each.end for each in computing), -busy, -overhead])
        gathered = engine.gather(facts)
        makespan = float(gathered[:, 1].max())
        return {
            "seconds": float(gathered[:, 0].max()),
            "bubble": 1 - float(-gathered[:, 2].sum()) / (makespan * engine.size),
            "overhead": float(-gathered[:, 3].sum()) / max(1, 2 * len(others)),
        }


def main() -> None:
    worker = Worker()
    rows = worker.rows()
    then = {name: assembly.plan.costs for name, assembly in worker.assemblies.items()}
    for row in rows:  # the first run of a schedule fetches what later ones find in memory
        worker.time(row)
    found: list[dict[str, Any]] = []
    for repeat in range(repeats):
        now = worker.measure()
        for row in rows if repeat % 2 == 0 else reversed(rows):
            result = worker.time(row)
            first = replace(row.plan, costs=then[row.placement]).timeline
            current = replace(row.plan, costs=now[row.placement]).timeline
            found.append(
                {
                    "placement": row.placement,
                    "schedule": row.name,
                    "microbatches": row.microbatches,
                    "repeat": repeat,
                    **result,
                    "predicted_then": first.step_seconds,
                    "predicted": current.step_seconds,
                    "predicted_bubble": current.bubble,
                }
            )
            if engine.rank == 0:
                print(
                    f"repeat {repeat} {row.placement}, {row.name}, m {row.microbatches}: "
                    f"{result['seconds'] * 1e3:.1f} ms, predicted "
                    f"{current.step_seconds * 1e3:.1f} ms",
                    flush=True,
                )
    if engine.rank == 0:
        answer.write_text(json.dumps(found))
    for assembly in worker.assemblies.values():
        assembly.transport.close()
    engines.shutdown()


if __name__ == "__main__":
    main()
