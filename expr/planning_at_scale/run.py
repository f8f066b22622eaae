"""Predicted step times of baseline, priority and planned exchange on clusters that nobody has here.

For each model, engine, bandwidth and number of workers: the plan that ``python -m ooodist.plan``
finds, that of ``--carried``, the best with all gradients in float16, the engine as it comes, the
engine tuned, and strict priority with its settings tuned. Nothing is trained or measured.

    python expr/planning_at_scale/run.py

writes predictions.csv, figure.png and figure.svg into this folder and prints the README's table. It
goes on where it was stopped: cases that predictions.csv has already are not predicted again.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import time
from dataclasses import dataclass, replace
from pathlib import Path

from report import draw, table

from ooodist.engines.kinds import find
from ooodist.planner.cluster import describe_network
from ooodist.planner.costs import StepCosts
from ooodist.planner.data_parallel.bound import lower_bound
from ooodist.planner.data_parallel.exchanges import arrange, ready_order
from ooodist.planner.data_parallel.named import NamedPlans, priority_sequence
from ooodist.planner.data_parallel.orders import baseline_order, num_deferred
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.search import WIRE_OF_PLANNED, Limits, comparison
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.util import yaml_dataclass

FOLDER = Path(__file__).parent
MODELS = ("resnet50", "vgg16", "bert_24")
ENGINES = ("horovod", "byteps")
WORKERS = (2, 4, 16, 64, 256, 1024, 4096)
BANDWIDTHS = (10.0, 25.0, 100.0)  # Gbit/s
LATENCY = 30e-6  # seconds from one host to another
# Four steps per execution are what tracing can bear; less search than usual, for so many cases.
LIMITS = Limits(max_steps_per_execution=4, credits=(1, 2, 8, None), evaluations=300)
RING_LIMITS = replace(LIMITS, credits=find("horovod").credits)  # as training does
SIZES = tuple(1 << exponent for exponent in range(20, 32))  # bytes, of buckets and chunks
COLUMNS = (
    *("model", "engine", "gbit_per_second", "workers"),
    *("plan", "step_seconds", "steps_per_execution", "exchanges", "deferred"),
)


@dataclass(frozen=True)
class Case:
    model: str
    engine: str
    bandwidth: float  # Gbit/s
    workers: int


def predict(case: Case) -> list[dict[str, object]]:
    """One row of the CSV file for each plan."""
    costs = yaml_dataclass.read_file(StepCosts, FOLDER / "costs" / f"{case.model}.yaml", "--costs")
    network = describe_network(case.engine, case.workers, case.bandwidth * 1e9, LATENCY)
    limits = LIMITS if network.by_urgency else RING_LIMITS
    wider = replace(limits, carrying=True, wire=WIRE_OF_PLANNED)
    found = comparison(costs, network, limits=wider)
    steps = found["planned"].steps_per_execution
    simulator = Simulator(costs, network)
    named = NamedPlans(simulator)
    plans = {
        "planned": found["planned"],
        "carried": found["carried"],
        "narrow": found["narrow"],
        "baseline": named.baseline(),
        "baseline_tuned": named.tuned(limits.credits, limits.partitions),
        "priority_tuned": tuned_priority(simulator, steps),
    }
    rows: list[dict[str, object]] = []
    for name, plan in plans.items():
        rows.append(
            {
                "model": case.model,
                "engine": case.engine,
                "gbit_per_second": f"{case.bandwidth:g}",
                "workers": case.workers,
                "plan": name,
                "step_seconds": f"{simulator.step_seconds(plan):.6g}",
                "steps_per_execution": plan.steps_per_execution,
                "exchanges": len(plan.exchanges),
                "deferred": num_deferred(costs, plan.order),
            }
        )
    shortest = lower_bound(costs, network, steps, carrying=True)
    bound = {"plan": "lower_bound", "step_seconds": f"{shortest:.6g}"}
    return [*rows, rows[-1] | bound | {"exchanges": "", "deferred": ""}]


def tuned_priority(simulator: Simulator, steps_per_execution: int) -> Plan:
    """Strict priority with the credit and the sizes of buckets and chunks that are best here.

    ByteScheduler searches chunks and credit; that small tensors travel together is more than it
    does, but without it a ring of many workers has no chance.
    """
    costs, network = simulator.costs, simulator.network
    credits = LIMITS.credits if network.by_urgency else RING_LIMITS.credits
    if network.by_urgency:
        plans = [
            NamedPlans(simulator, steps_per_execution, size).best_priority(credits)
            for size in SIZES
        ]
    else:
        order, ready = baseline_order(costs), ready_order(costs, None)
        plain = NamedPlans(simulator, steps_per_execution).priority()
        plans = [plain]
        for bucket, chunk in itertools.product((0, *SIZES), (None, 1 << 20, 1 << 22, 1 << 24)):
            exchanges = arrange(costs, ready, bucket_bytes=bucket, chunk_bytes=chunk)
            for credit in credits:
                sequence = priority_sequence(simulator, order, exchanges, credit)
                plans.append(replace(plain, exchanges=sequence, credit=credit))
    return min(plans, key=simulator.step_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--workers", nargs="+", type=int, default=WORKERS)
    parser.add_argument(
        "--bandwidths", nargs="+", type=float, default=BANDWIDTHS, help="Gbit/s of each host"
    )
    parser.add_argument("--processes", type=int, default=2, help="cases planned at one time")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of CSV and figure")
    options = parser.parse_args()

    sweep = itertools.product(options.models, options.engines, options.bandwidths, options.workers)
    file = options.output / "predictions.csv"
    done = read_cases(file) if file.exists() else set()
    predict_all(
        [case for case in itertools.starmap(Case, sweep) if case not in done],
        file,
        options.processes,
    )
    draw(file, options.output / "figure")
    print(table(file, workers=options.workers[len(options.workers) // 2]))


def read_cases(file: Path) -> set[Case]:
    """Those that a run before has predicted."""
    with file.open(newline="", encoding="utf-8") as stream:
        return {
            Case(row["model"], row["engine"], float(row["gbit_per_second"]), int(row["workers"]))
            for row in csv.DictReader(stream)
        }


def predict_all(cases: list[Case], file: Path, processes: int) -> None:
    """Appends the rows of each case to a CSV file as soon as they are known."""
    start = time.monotonic()
    is_new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        with multiprocessing.Pool(processes) as pool:
            results = zip(cases, pool.imap(predict, cases), strict=True)
            for count, (case, rows) in enumerate(results, start=1):
                writer.writerows(rows)
                stream.flush()
                passed = time.monotonic() - start
                left = passed / count * (len(cases) - count)
                print(
                    f"{count}/{len(cases)} {_said(case, rows)} | {passed:.0f} s, "
                    f"about {left:.0f} s left",
                    flush=True,
                )


def _said(case: Case, rows: list[dict[str, object]]) -> str:
    milliseconds = {row["plan"]: 1e3 * float(str(row["step_seconds"])) for row in rows}
    return (
        f"{case.model} {case.engine} {case.bandwidth:g} Gbit/s {case.workers} workers: "
        f"as it comes {milliseconds['baseline']:.1f} ms, "
        f"tuned {milliseconds['baseline_tuned']:.1f} ms, "
        f"priority {milliseconds['priority_tuned']:.1f} ms, "
        f"planned {milliseconds['planned']:.1f} ms, "
        f"carried {milliseconds['carried']:.1f} ms, "
        f"in 16 bits {milliseconds['narrow']:.1f} ms, "
        f"bound {milliseconds['lower_bound']:.1f} ms"
    )


if __name__ == "__main__":
    main()
