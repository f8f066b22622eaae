"""One training: a task, a method, a seed. ``accuracy.py`` starts each in a process of its own.

    python expr/elastic/train.py --task gpt --seed 1 --cache /tmp/cache      # learns what is first
    python expr/elastic/train.py --task gpt --seed 1 --cache /tmp/cache \\
        --method importance --output results.csv

Seconds are the process's CPU time, and it has one core (``taskset -c 0``). The clock runs while the
model is trained, which includes tracing steps, measuring importance and selecting. It stands still
during evaluation. What is measured before the first step, once, is the set-up, which is told apart.
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
from methods import CHANGES
from tasks import TASKS, Task

import ooodist
from ooodist.elastic.figures import write_selection
from ooodist.settings.sections import PlanningConfig

COLUMNS = (
    *("task", "method", "seed", "epoch", "seconds", "accuracy", "step_seconds"),
    *("setup_seconds", "renewals", "changes", "renewal_seconds"),
)
LONGER = 1.5  # times the epochs of full training: what a selection has, whose steps are shorter
HELP = f"a value of elastic.select, {', '.join(CHANGES)}, or auto"
FIXED = ("head", "bias_norm_head")


class Clock(keras.callbacks.Callback):
    """Measures the accuracy after each epoch, and the seconds of training until then.

    Attributes:
        rows: of each epoch its number, seconds, accuracy, and seconds of a step (median).
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self._validation = task.validation()
        self._seconds = 0.0
        self._steps: list[float] = []

    def on_train_begin(self, logs: object = None) -> None:
        self._began = self._last = time.process_time()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        now = time.process_time()
        self._steps.append(now - self._last)
        self._last = now

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self._seconds += time.process_time() - self._began
        x, y = self._validation
        found = self.model.evaluate(x, y, batch_size=64, verbose=0, return_dict=True)
        row = {
            "epoch": epoch + 1,
            "seconds": round(self._seconds, 3),
            "accuracy": round(found["accuracy"], 5),
            "step_seconds": round(statistics.median(self._steps), 5),
        }
        self.rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        self._steps.clear()
        self._began = self._last = time.process_time()


def weights_file(cache: Path, task: str, seed: int) -> Path:
    """Of the model that has learned what is learned first."""
    return cache / f"{task}-{seed}.weights.h5"


def learn_first(task: Task, seed: int, file: Path) -> None:
    """Trains on what is learned first, and writes the weights."""
    model = compiled(task.model(), keras.optimizers.Adam(task.first_rate))
    history = model.fit(
        task.first(seed), steps_per_epoch=task.steps, epochs=task.first_epochs, verbose=0
    )
    model.save_weights(file)
    print(f"training accuracy {history.history['accuracy'][-1]:.4f}")


def train(
    task: Task,
    seed: int,
    cache: Path,
    method: str,
    elastic: Mapping[str, Any],
    epochs: int,
    *,
    decays: bool = False,
) -> tuple[keras.Model, list[dict[str, Any]]]:
    """Goes on from the weights in the cache; the trained model, and a row an epoch."""
    known = task.model()
    known.load_weights(weights_file(cache, task.name, seed))
    keras.utils.set_random_seed(seed)  # the new head is the same for all methods
    steps = epochs * task.steps if decays else None
    model = compiled(task.go_on(known), task.optimizer(steps))
    data = task.then(seed)
    ooodist.init("local")
    began = time.process_time()
    is_full = method == "full"
    planning = PlanningConfig(profiles=str(cache / "profiles"))
    model = ooodist.distribute(model, elastic=None if is_full else elastic, planning=planning)
    if not is_full:
        model.ooodist.strategy.plan(next(iter(data)))  # fit would do it, on the clock
        if method in CHANGES:
            CHANGES[method](model.ooodist.strategy.controller)
    setup = time.process_time() - began
    clock = Clock(task)
    model.fit(data, steps_per_epoch=task.steps, epochs=epochs, verbose=0, callbacks=[clock])
    renewals = [] if is_full else model.ooodist.strategy.controller.renewals
    same = {
        "setup_seconds": round(setup, 3),
        "renewals": len(renewals),
        "changes": sum(renewal.changed for renewal in renewals[1:]),
        "renewal_seconds": round(sum(renewal.seconds for renewal in renewals), 3),
    }
    return model, [{**row, **same} for row in clock.rows]


def compiled(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """The model; its accuracy is that of classes, or of next bytes."""
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    return model


def add_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """To a CSV file, which is made if there is none."""
    is_new = not file.exists()
    with file.open("a", newline="") as target:
        writer = csv.DictWriter(target, COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cache", type=Path, required=True, help="folder of what is learned first")
    parser.add_argument("--method", help=f"{HELP}; none: learns first")
    parser.add_argument("--rho", type=float, default=0.5, help="share of a full step (default 0.5)")
    parser.add_argument("--renew", help="as 100 steps, instead of the task's")
    parser.add_argument("--epochs", type=int, help="instead of the task's")
    parser.add_argument("--equal", action="store_true", help="see accuracy.py")
    parser.add_argument("--label", help="the method's name in the CSV file")
    parser.add_argument("--output", type=Path, help="CSV file to which a row an epoch is added")
    parser.add_argument("--selection", type=Path, help="folder for the picture of selections")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    keras.utils.set_random_seed(options.seed)

    task = TASKS[options.task]
    options.cache.mkdir(parents=True, exist_ok=True)
    if options.method is None:
        learn_first(task, options.seed, weights_file(options.cache, task.name, options.seed))
        return
    is_full = options.method == "full"
    is_auto = options.method == "auto"
    select = "importance" if is_auto or options.method in CHANGES else options.method
    rho = "auto" if is_auto else options.rho
    elastic = {"select": select, "rho": rho, "renew": options.renew or task.renew}
    has_as_many = is_full or is_auto or options.equal or options.method in FIXED
    longer = 1 if has_as_many else LONGER
    epochs = options.epochs or round(longer * task.epochs)
    model, rows = train(
        *(task, options.seed, options.cache, options.method, elastic, epochs),
        decays=options.equal,
    )
    if options.selection is not None and not is_full:
        options.selection.mkdir(parents=True, exist_ok=True)
        controller = model.ooodist.strategy.controller
        names = [item.name for item in controller.cost_model.choice.items]
        write_selection(options.selection, names, controller.renewals)
    if options.output is not None:
        same = {
            "task": task.name,
            "method": options.label or options.method,
            "seed": options.seed,
        }
        add_rows(options.output, [{**same, **row} for row in rows])


if __name__ == "__main__":
    main()
