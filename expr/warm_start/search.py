"""Searches of 30 trials for an MLP and a learning rate, with and without a zoo, and a table.

    python expr/warm_start/search.py                                  # needs pip install optuna

Each search is a process on core 1; those of a seed follow each other. What ``search.csv`` has is
not done again. The start ``longer`` is the best trial of the cold search, trained for as many
epochs as the best trial from the zoo and its ancestors together.
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILE = Path(__file__).with_name("search.csv")
COLUMNS = ("seed", "start", "trial", "model", "rate", "epochs", "accuracy", "seconds", "cpu")
SEEDS = (1, 2, 3)
STARTS = ("cold", "zoo", "longer")
TRIALS, EPOCHS = 30, 10

Row = dict[str, str]


def main() -> None:
    if len(sys.argv) == 3:
        search(int(sys.argv[1]), sys.argv[2])
        return
    for seed in SEEDS:
        # The other way round for every second seed.
        for start in (*STARTS[:2][:: 1 if seed % 2 else -1], "longer"):
            if not rows(seed, start):
                command = ["taskset", "-c", "1", sys.executable, __file__, str(seed), start]
                subprocess.run(command, check=True)
    report()


def rows(seed: int, start: str) -> list[Row]:
    """The trials of a search; none if it was not complete."""
    if not FILE.exists():
        return []
    with FILE.open() as file:
        return [r for r in csv.DictReader(file) if (r["seed"], r["start"]) == (str(seed), start)]


def search(seed: int, start: str) -> None:
    """Runs one search and adds its trials to the file."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import optuna
    from architectures import build, task_of

    import ooodist

    task = task_of("mlp")
    validation = task.validation()
    found: list[dict[str, object]] = []
    began = time.perf_counter(), time.process_time()

    def train(name: str, rate: float, epochs: int, zoo: ooodist.Zoo | None) -> float:
        number = len(found)
        keras.utils.set_random_seed(1000 * seed + number)
        model = task.compiled(build(name))
        model.optimizer.learning_rate = rate
        data = task.train(1000 * seed + number)
        if zoo is not None:
            batch = next(iter(data.as_numpy_iterator()))
            zoo.warm_start(model, task=task.task, batches=[batch])
        model.fit(data, epochs=epochs, steps_per_epoch=task.steps, verbose=0)
        measured = model.evaluate(*validation, batch_size=512, return_dict=True, verbose=0)
        if zoo is not None:
            ids.append(zoo.register(model, measured, task=task.task, name=name))
        seconds, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        done = (seed, start, number, name, f"{rate:.3g}", epochs, measured["accuracy"])
        found.append(dict(zip(COLUMNS, (*done, f"{seconds:.2f}", f"{cpu:.2f}"), strict=True)))
        return float(measured["accuracy"])

    ids: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        zoo = ooodist.Zoo(folder) if start == "zoo" else None

        def objective(trial: optuna.Trial) -> float:
            width = trial.suggest_int("width", 16, 128, step=16)
            depth = trial.suggest_int("depth", 1, 3)
            rate = trial.suggest_float("rate", 5e-4, 2e-2, log=True)
            return train(f"mlp-{width}-{depth}", rate, EPOCHS, zoo)

        if start == "longer":
            cold, warm = (best(rows(seed, each)) for each in STARTS[:2])
            train(cold["model"], float(cold["rate"]), int(warm["epochs"]), None)
        else:
            sampler = optuna.samplers.TPESampler(seed=seed)
            study = optuna.create_study(direction="maximize", sampler=sampler)
            study.optimize(objective, n_trials=TRIALS)
        if zoo is not None:
            count_ancestors(found, ids, folder)
    is_new = not FILE.exists()
    with FILE.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(found)


def count_ancestors(found: list[dict[str, object]], ids: list[str], folder: str) -> None:
    """Adds the epochs of each trial's ancestors to its own."""
    from ooodist.zoo.zoo import Zoo

    with Zoo(folder) as zoo:
        parents = {row.id: row.meta.parent for row in zoo.list()}
    for trial, model in zip(found, ids, strict=True):
        parent = parents[model]
        while parent is not None:
            trial["epochs"] = int(str(trial["epochs"])) + EPOCHS
            parent = parents[parent]


def best(trials: list[Row]) -> Row:
    return max(trials, key=lambda row: float(row["accuracy"]))


def report() -> None:
    """Prints a table of all seeds."""
    print(
        "| seed | start | best accuracy | median accuracy | epochs of the best, with ancestors | "
        "time of the search | of its core | until the best of the cold search |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for seed in SEEDS:
        goal = float(best(rows(seed, "cold"))["accuracy"])
        for start in STARTS:
            trials = rows(seed, start)
            first = next((row for row in trials if float(row["accuracy"]) >= goal), None)
            reached = "" if start == "longer" else "never"
            if first is not None and start != "longer":
                reached = f"{float(first['cpu']):.0f} s, {int(first['trial']) + 1} trials"
            median = statistics.median(float(row["accuracy"]) for row in trials)
            print(
                f"| {seed} | {start} | {float(best(trials)['accuracy']):.4f} | {median:.4f} | "
                f"{best(trials)['epochs']} | {float(trials[-1]['seconds']):.0f} s | "
                f"{float(trials[-1]['cpu']):.0f} s | {reached} |"
            )


if __name__ == "__main__":
    main()
