"""Step time at several rho against rho times the full step, alone or on all ranks of a job.

    python expr/elastic/step_time.py resnet50
    python launch/netlab.py -np 2 --engine horovod --rate 1500Mbit -- \
        python expr/elastic/step_time.py resnet50 --network 1500Mbit --batch 16

Selections are those that training would make at its first step. Full training and all selections
take turns, so that a change of the machine's speed meets all of them. Rows are added to
step_time.csv, and the table of all rows is printed.
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ooodist import engines
from ooodist.config import job as job_file

HERE = Path(__file__).parent
RHOS = (0.4, 0.5, 0.6, 0.7, 0.8)
WARM_UP = 3
FIELDS = (
    *("model", "workers", "network", "engine", "order", "batch", "rho", "items", "share"),
    *("predicted_ms", "measured_ms", "full_ms", "measured_rho", "error"),
)


def main() -> None:
    options = read_options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    folder = Path(tempfile.gettempdir()) / "ooodist-step-time"  # the same on all ranks
    config = job_file.load(
        HERE / "jobs" / f"{options.model}.yaml",
        [
            f"output={folder}",
            f"order={{name: {options.order}}}",
            # The selections are made below; here it only must be feasible.
            "elastic={rho: 0.99}",
            *([] if options.batch is None else [f"batch={options.batch}"]),
            "planning.profile_anew=true",
        ],
    )
    engine = engines.init(timeout=300)
    rows = measure(config, engine, options)
    engines.shutdown()
    if engine.rank == 0:
        add(options.output, rows)
        print(table(read(options.output)))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=("resnet50", "vit"))
    parser.add_argument("--order", default="inorder", choices=("inorder", "priority", "planned"))
    parser.add_argument("--batch", type=int, help="samples of a worker (default: the job's)")
    parser.add_argument("--rounds", type=int, default=20, help="of all rows in turn")
    parser.add_argument("--network", default="none", help="what to write down as the network")
    parser.add_argument("--output", type=Path, default=HERE / "step_time.csv")
    return parser.parse_args()


def measure(config: Any, engine: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the result; all ranks call it."""
    from ooodist.elastic.controller import Mask
    from ooodist.errors import UserError
    from ooodist.job.preparation import set_up
    from ooodist.step.backward import OrderedBackward
    from ooodist.step.execution import Execution

    job = set_up(config, engine)
    strategy = job.model.ooodist.strategy
    stream = iter(job.data.train)
    batches = [next(stream) for _ in range(max(4, strategy.steps_per_execution))]
    choice = strategy.controller.cost_model.choice
    strategy.selective.config = replace(strategy.config, cache=len(RHOS) + 2)

    launches: dict[float, Callable[[Any], Any]] = {}
    controllers: dict[float, Any] = {}
    for rho in RHOS:
        elastic = replace(config.elastic, rho=rho)
        try:
            controller = replace(strategy.controller, config=elastic, mask=None, renewals=[])
        except UserError as error:
            logging.warning("rho %g: %s", rho, error)
            continue
        controller.renew(batches[:4])
        controllers[rho], launches[rho] = (
            controller,
            strategy.selective.execution_for(controller.mask),
        )
    if options.order == "inorder":
        launches[1.0] = Execution(job.model, OrderedBackward(strategy.inner.backward.exchange))
    else:
        everything = choice.weights(range(len(choice.items)))
        launches[1.0] = strategy.selective.execution_for(Mask(1, everything))

    seconds = timed(launches, batches[: strategy.steps_per_execution], engine, options.rounds)
    full = statistics.median(seconds[1.0])
    size = {w.path: w.value.shape.num_elements() for w in job.model.trainable_variables}
    rows = []
    for rho, controller in controllers.items():
        took = statistics.median(seconds[rho])
        share = sum(size[name] for name in controller.mask.weights) / sum(size.values())
        renewal = controller.renewals[-1]
        rows.append(
            {
                "model": options.model,
                "workers": engine.size,
                "network": options.network,
                "engine": engine.name,
                "order": options.order,
                "batch": config.batch,
                "rho": rho,
                "items": f"{len(renewal.selected)}/{len(choice.items)}",
                "share": f"{share:.3f}",
                "predicted_ms": f"{renewal.predicted * 1e3:.1f}",
                "measured_ms": f"{took * 1e3:.1f}",
                "full_ms": f"{full * 1e3:.1f}",
                "measured_rho": f"{took / full:.3f}",
                "error": f"{took / (rho * full) - 1:+.3f}",
            }
        )
    return rows


def timed(
    launches: dict[float, Callable[[Any], Any]], batches: Any, engine: Any, rounds: int
) -> dict[float, list[float]]:
    """Seconds of a step of each launch, in turns."""
    from ooodist.engines.devices import wait_for_gpu

    for launch in launches.values():
        for _ in range(WARM_UP):
            launch(batches)
    seconds: dict[float, list[float]] = {rho: [] for rho in launches}
    began = time.monotonic()
    for number in range(rounds):
        for rho, launch in launches.items():
            engine.barrier()
            start = time.perf_counter()
            launch(batches)
            wait_for_gpu()
            seconds[rho].append((time.perf_counter() - start) / len(batches))
        left = (time.monotonic() - began) / (number + 1) * (rounds - number - 1)
        if engine.rank == 0 and number % 5 == 4:
            print(f"round {number + 1} of {rounds}, {left:.0f} s left", flush=True)
    return seconds


def add(file: Path, rows: list[dict[str, Any]]) -> None:
    """Rows of the same setting are replaced."""
    key = ("model", "workers", "network", "engine", "order", "batch", "rho")
    known = {tuple(str(row[name]) for name in key): row for row in [*read(file), *rows]}
    with file.open("w", newline="") as content:
        writer = csv.DictWriter(content, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(known.values())


def read(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open(newline="") as content:
        return list(csv.DictReader(content))


def table(rows: list[dict[str, str]]) -> str:
    """Of Markdown."""
    lines = [
        "| model | workers | order | rho | items | weights | predicted | measured | full | "
        "measured / (rho x full) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        where = (
            row["workers"]
            if row["network"] == "none"
            else (f"{row['workers']}, {row['engine']}, {row['network']}")
        )
        lines.append(
            f"| {row['model']}, batch {row['batch']} | {where} | {row['order']} | {row['rho']} | "
            f"{row['items']} | {100 * float(row['share']):.0f} % | {row['predicted_ms']} ms | "
            f"{row['measured_ms']} ms | {row['full_ms']} ms | {1 + float(row['error']):.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
