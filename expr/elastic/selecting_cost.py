"""What selecting costs, and how far the importance of a few batches can be trusted.

    taskset -c 1 python expr/elastic/selecting_cost.py             # twice: the second has a profile
    taskset -c 1 python expr/elastic/selecting_cost.py --correlation

Seconds are those of the CPU, so that other programs on the machine count little.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tasks import TASKS
from train import compiled, learn_first, weights_file

import ooodist
from ooodist.elastic.controller import Controller
from ooodist.elastic.importance import Probe, rank_correlation
from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.settings.sections import PlanningConfig
from ooodist.step.building import build

TASK = TASKS["digits"]
RENEW = 280  # steps
MANY = 96  # batches, whose importance is taken for the true one
FEW = (2, 4, 8, 16)
TIMES = 6


def costs(model: keras.Model, profiles: Path) -> None:
    """Prints the seconds of set-up and of each renewal in a training of three of them."""
    spent: list[float] = []
    Controller.renew = clocked(Controller.renew, spent)  # type: ignore[method-assign]
    began = time.process_time()
    elastic = {"rho": 0.5, "renew": f"{RENEW} steps"}
    planning = PlanningConfig(profiles=str(profiles))
    model = ooodist.distribute(model, elastic=elastic, planning=planning)
    data = TASK.then(1)
    model.ooodist.strategy.plan(next(iter(data)))
    print(f"set-up {time.process_time() - began:.2f} s")
    model.fit(data, steps_per_epoch=2 * RENEW + 20, verbose=0)
    print("renewals", ", ".join(f"{seconds:.2f} s" for seconds in spent))


def clocked(plain: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        began = time.process_time()
        result = plain(*arguments)
        spent.append(time.process_time() - began)
        return result

    return run


def correlations(model: keras.Model) -> None:
    """Prints Spearman's rank correlation with the importance of many batches."""
    batches = iter(TASK.then(1))
    build(model, next(batches))
    probe = Probe(model, OptimizerState(model))

    def importance(number: int) -> list[float]:
        changes = probe([next(batches) for _ in range(number)]).loss_change
        return [-changes[weight.path] for weight in model.trainable_variables]

    for steps in (0, 100, 300):
        if steps:
            model.fit(TASK.then(2), steps_per_epoch=steps, verbose=0)
        true = importance(MANY)
        found = {
            number: [rank_correlation(true, importance(number)) for _ in range(TIMES)]
            for number in FEW
        }
        cells = [f"{np.median(f):.2f} ({min(f):.2f} to {max(f):.2f})" for f in found.values()]
        print(f"after {steps} steps more:", ", ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--correlation", action="store_true")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir(), "ooodist-elastic")
    )
    options = parser.parse_args()
    weights = weights_file(options.cache, TASK.name, 1)
    if not weights.exists():
        options.cache.mkdir(parents=True, exist_ok=True)
        learn_first(TASK, 1, weights)
    known = TASK.model()
    known.load_weights(weights)
    keras.utils.set_random_seed(1)
    model = compiled(TASK.go_on(known), TASK.optimizer())
    ooodist.init("local")
    if options.correlation:
        correlations(model)
    else:
        costs(model, options.cache / "profiles")


if __name__ == "__main__":
    main()
