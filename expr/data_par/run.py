"""Stock engines against plans, on two emulated hosts: measured, predicted, and the lower bound.

    python expr/data_par/run.py [--models resnet50 vgg16 ...] [--engines horovod byteps ...]

Needs root (launch/netlab.py says why). For each model and engine some jobs run in one lab and take
turns, the others stopped: one with the engine as it comes (rows baseline, barrier_removed and
first_k), one with the engine set up for plans (priority, planned, carried) and, for BytePS at ratio
1, one in which it asks for sums as late as it does without our patch (late_pull). TensorFlow's
collectives have no settings: there one job runs all rows. For each ratio of exchange to compute the
links get the rate that makes it, the network is measured, every row is traced and warmed up, and
then the rows are timed in alternating repeats. In each job a step without an exchange is timed as
well: before plans are made, so that they are made for the machine's present speed, and in every
repeat, so that a change of it shows. What came out replaces what results.csv had of the same
setting; report.py makes the table and the figure of it.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for expr/lab, which is not installed

from expr.lab.background_job import BackgroundJob
from expr.lab.network import Lab
from ooodist.config import job as job_file
from ooodist.engines.kinds import find
from ooodist.engines.kinds.byteps import DEFAULT_PARTITION_BYTES
from ooodist.errors import UserError
from ooodist.planner.costs import Network, StepCosts, UnitCost
from ooodist.planner.data_parallel.named import PARTITION_BYTES
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.search import Limits, comparison, predicted
from ooodist.profiler.conditions import processor
from ooodist.util import yaml_dataclass

MODELS = ("resnet50", "vgg16", "bert", "mobilenet_v3")
ENGINES = ("horovod", "byteps", "collective")
RATIOS = (0.5, 1.0, 2.0)
COLUMNS = (
    *("model", "engine", "workers", "batch", "ratio", "rate_bits_per_second"),
    *("row", "steps_per_execution"),
    *("repeat", "seconds", "predicted", "predicted_then", "lower_bound"),
    *("compute", "exchange", "exchange_cpu"),
    "processor",
)

HERE = Path(__file__).resolve().parent
# By name: variables of the engine, and the rows that run in the job.
Jobs = dict[str, tuple[dict[str, str], tuple[str, ...]]]
STOCK_ROWS = ("baseline", "barrier_removed", "first_k")  # the engine as it comes
PLAN_ROWS = ("priority", "planned", "carried")  # the engine set up for plans
JOBS: Jobs = {
    "baseline": ({}, STOCK_ROWS),
    "plans": ({"OOODIST_DATA_PAR_FOR_PLANS": "1"}, PLAN_ROWS),
}
# BytePS at ratio 1, besides: as it is without the part of our patch that makes exchanges faster.
BYTEPS_JOBS: Jobs = {
    "late_pull": ({"BYTEPS_PULL_AFTER_PUSH": "1"}, ("late_pull",)),
}
# It has nothing to set up, and two jobs differ by some percent in how fast they compute.
COLLECTIVE_JOBS: Jobs = {"both": ({}, STOCK_ROWS + PLAN_ROWS)}
# Times the batch of the job, for the CPU time of the exchange to be a small part of the
# computation: BytePS, whose servers share the cores, takes several times as much as Horovod.
BATCHES = {"horovod": 1, "byteps": 2, "collective": 1}
FIRST_RATE = 1e9  # bits a second, while models are built
LONGEST_ANSWER = 900.0  # seconds
MOST_STEPS_PER_EXECUTION = 4  # if nothing else is asked for: tracing a large model takes long
LONG_STEP = 2.0  # seconds; of a shorter one it shows what another job has left in the caches


def jobs_of(engine: str, ratio: float | None, late_pull: bool = True) -> Jobs:
    """The jobs that take turns, with their variables and rows."""
    if engine == "collective":
        return COLLECTIVE_JOBS
    return JOBS | BYTEPS_JOBS if late_pull and (engine, ratio) == ("byteps", 1) else JOBS


class Turn:
    """One job of the lab; it runs while it is asked something, and is stopped otherwise."""

    def __init__(self, job: BackgroundJob, folder: Path) -> None:
        self._job = job
        self._folder = folder
        self._number = 0
        self.ask("ready")

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """What the job's rank 0 answers. Raises UserError if the job has failed."""
        self._job.resume()
        incomplete = self._folder / "incomplete"
        incomplete.write_text(json.dumps({"do": what, **arguments}))
        incomplete.rename(self._folder / f"{self._number}.json")
        answer = self._folder / f"{self._number}.answer.json"
        deadline = time.monotonic() + LONGEST_ANSWER
        while not answer.exists():
            try:
                code = self._job.wait(timeout=0.02)
            except TimeoutError:
                code = None
            if code is not None or time.monotonic() > deadline:
                raise UserError(f"{what} was not answered: {self._job.failure or 'too slow'}")
        self._job.pause()
        self._number += 1
        return dict(json.loads(answer.read_text()))

    def end(self) -> None:
        """Lets the job end in order."""
        self._job.resume()
        (self._folder / f"{self._number}.json").write_text(json.dumps({"do": "end"}))
        self._job.wait(timeout=60)


@dataclass(frozen=True)
class Setting:
    """One model on one engine at one ratio."""

    model: str
    engine: str
    workers: int
    batch: int  # of a worker
    ratio: float
    rate: float  # bits a second


def measure(
    model: str,
    engine: str,
    workers: int,
    ratios: Sequence[float | None],
    rate: float | None,
    most_steps: int,
    repeats: int,
    late_pull: bool,
    out: Path,
) -> None:
    """All rows of a model on an engine, with at most so many steps per execution.

    Args:
        ratios: of exchange to compute; None for the one that ``rate`` makes.
        rate: of the links, in bits a second; None for the one that makes a ratio.
    """
    job = HERE / "jobs" / f"{model}.yaml"
    batch = job_file.load(job).batch * BATCHES[engine]
    scratch = Path(tempfile.mkdtemp(prefix="ooodist-data-par-"))
    jobs_at = partial(jobs_of, engine, late_pull=late_pull)
    with Lab(workers, mbit(FIRST_RATE)) as lab:
        all_turns = {}
        jobs = {name: job for ratio in ratios for name, job in jobs_at(ratio).items()}
        for name, (variables, _) in jobs.items():
            folder = scratch / name
            folder.mkdir()
            command = [sys.executable, str(HERE / "worker.py")]
            command += [str(job), str(folder), str(batch)]
            quiet = {
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "PYTHONPATH": str(HERE.parents[1]),
                # In all jobs: with one thread, baseline could not exchange while it computes.
                "TF_NUM_INTEROP_THREADS": "2",
                # TensorFlow's default only where the CPU has VNNI; without it a ResNet-50 computes
                # more than twice as long, and a ratio would be one of slow convolutions.
                "TF_ENABLE_ONEDNN_OPTS": "1",
            }
            say(f"{model}, {engine}: starting the job {name} (logs: {folder})")
            all_turns[name] = Turn(lab.start(engine, command, folder, quiet | variables), folder)
        # In each job: what an engine's threads take while nothing is exchanged differs.
        costs = {}
        for name, turn in all_turns.items():
            costs[name] = yaml_dataclass.read(StepCosts, turn.ask("compute")["costs"])
            say(f"{name}: compute {costs[name].compute_seconds:.3f} s")
        num_bytes = gradient_bytes(costs)
        say(f"gradients: {num_bytes / 1e6:.1f} MB")
        traced: dict[tuple[str, str], str] = {}
        for wanted in ratios:
            turns = {name: all_turns[name] for name in jobs_at(wanted)}
            costs |= {name: at_present_speed(turns[name], costs[name]) for name in turns}
            on_wire = 8 * num_bytes * 2 * (workers - 1) / workers  # bits
            compute = min(cost.compute_seconds for cost in costs.values())
            ratio = wanted or round(on_wire / (rate * compute), 2)
            setting = Setting(
                model, engine, workers, batch, ratio, rate or on_wire / (ratio * compute)
            )
            lab.set_rate(mbit(setting.rate))
            rows = plan_rows(jobs_at(wanted), turns, costs, setting, most_steps)
            for row, (turn, plan, _) in rows.items():
                baseline = row in ("baseline", "late_pull")  # the engine's own way of training
                key = None if baseline else yaml_dataclass.dump(replace(plan, predicted=None))
                if traced.get((turn, row)) != (key or "baseline"):
                    took = turns[turn].ask("trace", name=row, plan=key)["seconds"]
                    steps = plan.steps_per_execution
                    say(f"{row}: {steps} steps per execution, traced in {took:.0f} s")
                    traced[turn, row] = key or "baseline"
            time_rows(turns, rows, setting, costs, repeats, out)
        for turn in all_turns.values():
            turn.end()


def at_present_speed(turn: Turn, costs: StepCosts) -> StepCosts:
    """The costs, with their seconds as they are now."""
    return at_speed(costs, statistics.median(seconds_of_computing(turn) for _ in range(3)))


def seconds_of_computing(turn: Turn) -> float:
    """Of a step without an exchange."""
    seconds = float(turn.ask("run", name="computing", launches=1)["seconds"])
    if seconds < LONG_STEP:  # that was to warm up
        seconds = float(turn.ask("run", name="computing", launches=1)["seconds"])
    return seconds


def seconds_of_row(turn: Turn, row: str, plan: Plan) -> float:
    """Of a step."""
    assert plan.predicted is not None
    is_short = plan.steps_per_execution * plan.predicted.step_seconds < LONG_STEP
    return float(turn.ask("run", name=row, launches=2 if is_short else 1)["seconds"])


def at_speed(costs: StepCosts, seconds: float) -> StepCosts:
    """The costs, scaled so that a step without an exchange takes so many seconds."""
    before = costs.compute_seconds + costs.launch_seconds
    say(f"a step without an exchange takes {seconds:.3f} s, and took {before:.3f} s")
    return scaled(costs, seconds / before)


def scaled(costs: StepCosts, factor: float) -> StepCosts:
    def units(those: tuple[UnitCost, ...]) -> tuple[UnitCost, ...]:
        return tuple(replace(unit, seconds=unit.seconds * factor) for unit in those)

    return replace(
        costs,
        forward=units(costs.forward),
        backward=units(costs.backward),
        weights=tuple(
            replace(weight, update_seconds=weight.update_seconds * factor)
            for weight in costs.weights
        ),
        middle_seconds=costs.middle_seconds * factor,
        launch_seconds=costs.launch_seconds * factor,
    )


def plan_rows(
    jobs: Jobs,
    turns: dict[str, Turn],
    costs: dict[str, StepCosts],
    setting: Setting,
    most_steps: int,
) -> dict[str, tuple[str, Plan, Network]]:
    """For each row the job that runs it, its plan and the network as that job sees it."""
    rows = {}
    for turn, (_, names) in jobs.items():
        for for_plans in (False, True):
            those = [row for row in names if (row in PLAN_ROWS) == for_plans]
            if not those:
                continue
            answer = turns[turn].ask("network", for_plans=for_plans)
            network = yaml_dataclass.read(Network, answer["network"])
            say(f"ratio {setting.ratio}, {turn}: {network}")
            allowed = limits(setting.engine, for_plans, most_steps)
            found = comparison(costs[turn], network, limits=allowed)
            if "carried" in those:  # and one step a call
                single = replace(allowed, max_steps_per_execution=1, carrying=True)
                found["carried"] = comparison(costs[turn], network, limits=single)["carried"]
            for row in those:
                rows[row] = (turn, found["baseline" if row == "late_pull" else row], network)
    longest = rows["planned"][1].steps_per_execution
    turn, plan, network = rows["barrier_removed"]
    plan = predicted(replace(plan, steps_per_execution=longest), costs[turn], network)
    rows["barrier_removed"] = (turn, plan, network)
    return rows


def limits(engine: str, for_plans: bool, most_steps: int = MOST_STEPS_PER_EXECUTION) -> Limits:
    """What the planner may choose; what the engine was started with it cannot change any more."""
    chosen = Limits(max_steps_per_execution=most_steps)
    if for_plans:
        chosen = replace(chosen, credits=find(engine).credits)
    elif engine == "byteps":
        chosen = replace(chosen, credits=(None,))  # its default: everything in flight
    if engine == "byteps":
        size = DEFAULT_PARTITION_BYTES if for_plans else PARTITION_BYTES
        chosen = replace(chosen, partitions=(size,))
    return chosen


def time_rows(
    turns: dict[str, Turn],
    rows: dict[str, tuple[str, Plan, Network]],
    setting: Setting,
    costs: dict[str, StepCosts],
    repeats: int,
    out: Path,
) -> None:
    """Times every row in each of the repeats, and writes what came out.

    Each row gets two predictions: the one made before, and the one that the same plan, profile and
    network give at the speed at which steps without an exchange were computed meanwhile.
    """
    timers: dict[str, Callable[[], float]] = {
        row: partial(seconds_of_row, turns[turn], row, plan)
        for row, (turn, plan, _) in rows.items()
    }
    for turn in turns:
        timers[f"computing, {turn}"] = partial(seconds_of_computing, turns[turn])
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    for repeat in range(repeats):
        for name in timers if repeat % 2 == 0 else reversed(timers):
            seconds[name].append(timers[name]())
            say(f"  repeat {repeat} {name}: {seconds[name][-1]:.3f} s")
    then = {
        turn: at_speed(costs[turn], statistics.median(seconds[f"computing, {turn}"]))
        for turn in turns
    }
    common = {
        "model": setting.model,
        "engine": setting.engine,
        "workers": setting.workers,
        "batch": setting.batch,
        "ratio": setting.ratio,
        "rate_bits_per_second": round(setting.rate),
        "processor": processor(),
    }
    num_bytes = gradient_bytes(costs)
    lines = []
    for row, (turn, plan, network) in rows.items():
        made = plan.predicted
        made_then = predicted(plan, then[turn], network).predicted
        assert made is not None
        assert made_then is not None
        say(
            f"{row}: {statistics.median(seconds[row]):.3f} s, predicted {made.step_seconds:.3f} s, "
            f"at its speed {made_then.step_seconds:.3f} s"
        )
        for repeat, took in enumerate(seconds[row]):
            lines.append(
                common
                | {
                    "row": row,
                    "steps_per_execution": plan.steps_per_execution,
                    "repeat": repeat,
                    "seconds": round(took, 5),
                    "predicted": round(made.step_seconds, 5),
                    "predicted_then": round(made_then.step_seconds, 5),
                    "lower_bound": round(made_then.lower_bound_seconds, 5),
                    "compute": round(then[turn].compute_seconds, 5),
                    "exchange": round(num_bytes * network.seconds_per_byte, 5),
                    "exchange_cpu": round(num_bytes * network.cpu_seconds_per_byte, 5),
                }
            )
    write(out, lines)


def gradient_bytes(costs: dict[str, StepCosts]) -> int:
    """Of the model that all jobs train."""
    return sum(weight.num_bytes for weight in next(iter(costs.values())).weights)


def write(out: Path, lines: list[dict[str, Any]]) -> None:
    """Puts the lines of one setting in the place of those that the file has of it."""
    kept = []
    measured = setting_of(lines[0])
    if out.exists():
        with out.open(newline="") as file:
            kept = [line for line in csv.DictReader(file) if setting_of(line) != measured]
    incomplete = out.with_suffix(".incomplete")
    with incomplete.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows([*kept, *lines])
    incomplete.rename(out)


def setting_of(line: dict[str, Any]) -> tuple[str, str, int, float]:
    """The setting of a line, without what follows from it."""
    return line["model"], line["engine"], int(line["workers"]), float(line["ratio"])


def mbit(rate: float) -> str:
    """Bits a second as expr/lab/network.py reads them."""
    return f"{rate / 1e6:.3f}Mbit"


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    links = parser.add_mutually_exclusive_group()
    links.add_argument("--ratios", nargs="+", type=float, default=RATIOS, help="0.5 1 2")
    links.add_argument("--rate", type=float, help="of the links, in Mbit/s, instead of a ratio")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--most-steps", type=int, default=MOST_STEPS_PER_EXECUTION, help="that a launch may have"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-late-pull", action="store_true", help="leave that row out")
    parser.add_argument(
        "--output", type=Path, default=HERE / "results.csv", help="lines of other settings stay"
    )
    options = parser.parse_args()
    if options.rate is not None and options.rate <= 0:
        parser.error(f"--rate is {options.rate:g}, but must be above 0 Mbit/s")
    try:
        for model in options.models:
            for engine in options.engines:
                measure(
                    model,
                    engine,
                    options.workers,
                    [None] if options.rate else options.ratios,
                    1e6 * options.rate if options.rate else None,
                    options.most_steps,
                    options.repeats,
                    not options.no_late_pull,
                    options.output,
                )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
