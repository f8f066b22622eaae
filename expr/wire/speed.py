"""Steps with gradients in 16 bits against stock Horovod and full width, on two emulated hosts.

    python expr/wire/speed.py [--models mlp bert] [--ratio 2]

Needs root (launch/netlab.py says why). As in expr/data_par, whose worker and lab it uses: one job
has the engine as it comes, another one is set up for plans; the links get the rate at which the
exchange takes ``ratio`` times as long as the computation; and rows are timed in turns, each job
stopped while the other runs. Each time is written to the CSV file; medians are printed.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA_PAR = HERE.parent / "data_par"
sys.path.insert(0, str(DATA_PAR))
sys.path.append(str(HERE.parents[1]))  # for expr/lab, which is not installed

import run as data_par  # noqa: E402

from expr.lab.network import Lab  # noqa: E402
from ooodist.config import job as job_file  # noqa: E402
from ooodist.engines.kinds import find  # noqa: E402
from ooodist.planner.costs import Network, StepCosts  # noqa: E402
from ooodist.planner.data_parallel.plan import Plan  # noqa: E402
from ooodist.planner.data_parallel.search import (  # noqa: E402
    Limits,
    comparison,
    in_wire,
    make_plan,
)
from ooodist.planner.narrowing import narrow_bytes  # noqa: E402
from ooodist.util import yaml_dataclass  # noqa: E402

MODELS = ("mlp", "bert")
ENGINE = "horovod"
COLUMNS = ("model", "ratio", "row", "narrow_mb", "steps_per_execution", "predicted", "seconds")


def plans_for(costs: StepCosts, network: Network, evaluations: int) -> dict[str, Plan]:
    """The rows that the job set up for plans runs."""
    limits = Limits(
        max_steps_per_execution=2,
        credits=find(ENGINE).credits,
        evaluations=evaluations,
        carrying=True,
    )
    return {
        "full width": make_plan(costs, network, limits=limits),
        "float16": make_plan(costs, network, limits=in_wire(limits, "float16")),
        "wire planned": make_plan(costs, network, limits=in_wire(limits, "planned")),
    }


def measure(model: str, ratio: float, repeats: int, evaluations: int) -> list[dict[str, object]]:
    """Returns a line for each time that was measured."""
    job = HERE / "jobs" / f"{model}.yaml"
    batch = job_file.load(job).batch
    scratch = Path(tempfile.mkdtemp(prefix="ooodist-wire-"))
    with Lab(2, data_par.mbit(data_par.FIRST_RATE)) as lab:
        turns, costs, networks = {}, {}, {}
        for name, variables in (("stock", {}), ("plans", {"OOODIST_DATA_PAR_FOR_PLANS": "1"})):
            folder = scratch / name
            folder.mkdir()
            command = [sys.executable, str(DATA_PAR / "worker.py"), str(job), str(folder)]
            quiet = {
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "PYTHONPATH": str(HERE.parents[1]),
                "TF_NUM_INTEROP_THREADS": "2",  # as in expr/data_par
                "TF_ENABLE_ONEDNN_OPTS": "1",
            }
            started = lab.start(ENGINE, [*command, str(batch)], folder, quiet | variables)
            turns[name] = data_par.Turn(started, folder)
            costs[name] = yaml_dataclass.read(StepCosts, turns[name].ask("compute")["costs"])
            costs[name] = data_par.at_present_speed(turns[name], costs[name])
        num_bytes = data_par.gradient_bytes(costs)
        rate = 8 * num_bytes / (ratio * costs["plans"].compute_seconds)  # two workers' ring
        lab.set_rate(data_par.mbit(rate))
        data_par.say(f"{model}: {num_bytes / 1e6:.1f} MB, {rate / 1e6:.0f} Mbit/s")
        for name, for_plans in (("stock", False), ("plans", True)):
            answer = turns[name].ask("network", for_plans=for_plans)["network"]
            networks[name] = yaml_dataclass.read(Network, answer)
        few = Limits(max_steps_per_execution=1, evaluations=0)
        stock = comparison(costs["stock"], networks["stock"], limits=few)["baseline"]
        rows = {"stock Horovod": ("stock", stock)}
        for name, plan in plans_for(costs["plans"], networks["plans"], evaluations).items():
            rows[name] = ("plans", plan)
        for name, (turn, plan) in rows.items():
            text = yaml_dataclass.dump(replace(plan, predicted=None)) if turn == "plans" else None
            turns[turn].ask("trace", name=name, plan=text)
        lines = []
        for repeat in range(repeats):
            for name in rows if repeat % 2 == 0 else reversed(rows):
                turn, plan = rows[name]
                assert plan.predicted is not None
                line = {
                    "model": model,
                    "ratio": ratio,
                    "row": name,
                    "narrow_mb": round(narrow_bytes(plan, costs[turn]) / 1e6, 2),
                    "steps_per_execution": plan.steps_per_execution,
                    "predicted": round(plan.predicted.step_seconds, 4),
                    "seconds": round(data_par.seconds_of_row(turns[turn], name, plan), 4),
                }
                data_par.say(str(line))
                lines.append(line)
        for turn in turns.values():
            turn.end()
    return lines


def report(lines: list[dict[str, object]]) -> str:
    """A line a row: the median, and the gain over the first row of its model."""
    table = ["| model, ratio | row | s/step | over stock | predicted | MB in 16 bits |"]
    table.append("|---|---|---|---|---|---|")
    for setting in dict.fromkeys((line["model"], line["ratio"]) for line in lines):
        own = [line for line in lines if (line["model"], line["ratio"]) == setting]
        times: dict[object, list[float]] = {}
        for line in own:
            times.setdefault(line["row"], []).append(float(str(line["seconds"])))
        stock = statistics.median(next(iter(times.values())))
        for row, seconds in times.items():
            first = next(line for line in own if line["row"] == row)
            median = statistics.median(seconds)
            table.append(
                f"| {setting[0]}, {setting[1]} | {row} | {median:.3f} | {stock / median:.2f}x | "
                f"{first['predicted']} | {first['narrow_mb']} |"
            )
    return "\n".join(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--ratio", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=4000, help="plans of a random search")
    parser.add_argument("--results", type=Path, default=HERE / "speed.csv")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    lines: list[dict[str, object]] = []
    if options.results.exists():
        with options.results.open(newline="") as file:
            lines = [dict(line) for line in csv.DictReader(file)]
    for model in () if options.report else options.models:
        setting = (model, str(options.ratio))
        lines = [line for line in lines if (line["model"], line["ratio"]) != setting]
        lines += measure(model, options.ratio, options.repeats, options.evaluations)
        incomplete = options.results.with_suffix(".incomplete")
        with incomplete.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(lines)
        os.replace(incomplete, options.results)
    print(report(lines))


if __name__ == "__main__":
    main()
