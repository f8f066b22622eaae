"""One training, cold or from a zoo, with its accuracy after each epoch."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from architectures import build, kept_epochs, task_of

import ooodist
from ooodist.transfer import rate
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.graph.operators import outline_of
from ooodist.transfer.mapping.report import TensorReport
from ooodist.transfer.mapping.transform import Transformed, transform
from ooodist.transfer.matching.match import match, prepare
from ooodist.zoo.start import named_weights, take_over
from ooodist.zoo.zoo import Zoo

METHODS = ("cold", "warm", "same_shape", "random_parent")
LOWER_RATE, RAMP_STEPS = 0.5, 200  # as by default
VALIDATION_BATCH = 512


@dataclass(frozen=True)
class Start:
    """Where a training starts.

    Attributes:
        parent: name of the model in the zoo; empty if the training is cold.
        score: how similar that is.
        carried: share of the parameters that come from there.
        seconds: that finding and transforming it took.
    """

    parent: str = ""
    score: float = 0.0
    carried: float = 0.0
    seconds: float = 0.0


class Clock(keras.callbacks.Callback):
    """Seconds of training in each epoch, without evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._began = time.perf_counter()

    def on_test_begin(self, logs: object = None) -> None:
        self.seconds.append(time.perf_counter() - self._began)


def train(
    name: str, method: str, seed: int, zoo: str, *, kept: bool = False
) -> tuple[keras.Model, list[dict[str, Any]]]:
    """The trained model, and a row for each epoch: seconds, accuracy, and where it started.

    Args:
        name: of the architecture.
        method: one of METHODS.
        seed: of the weights and of the order of samples.
        zoo: folder.
        kept: whether the model is for the zoo.
    """
    keras.utils.set_random_seed(seed)
    task = task_of(name)
    epochs = kept_epochs(name) if kept else task.epochs
    model = task.compiled(build(name), epochs if kept else None)
    start = _started(model, name, method, seed, zoo)
    clock = Clock()
    history = model.fit(
        task.train(seed),
        epochs=epochs,
        steps_per_epoch=task.steps,
        validation_data=task.validation(),
        validation_batch_size=VALIDATION_BATCH,
        callbacks=[clock],
        verbose=0,
    )
    accuracies = history.history["val_accuracy"]
    rows = [
        {
            **{"architecture": name, "method": method, "seed": seed, "epoch": epoch},
            **{"seconds": round(seconds, 4), "accuracy": round(float(accuracy), 5)},
            **{"parent": start.parent, "score": round(start.score, 4)},
            **{"carried": round(start.carried, 4), "start_seconds": round(start.seconds, 4)},
        }
        for epoch, (seconds, accuracy) in enumerate(
            zip(clock.seconds, accuracies, strict=True), start=1
        )
    ]
    return model, rows


def _started(model: keras.Model, name: str, method: str, seed: int, zoo: str) -> Start:
    task = task_of(name)
    if method == "cold":
        return Start()
    batches = list(itertools.islice(task.train(seed), 1))
    if method == "warm":
        found = ooodist.warm_start(
            model,
            zoo,
            task=task.task,
            dataset=task.name,
            lower_rate=LOWER_RATE,
            ramp_steps=RAMP_STEPS,
            batches=batches,
            required=True,
        )
        assert found is not None
        return Start(found.name, found.score, found.carried, sum(found.seconds.values()))
    with Zoo(zoo) as models:
        rows = [row for row in models.list() if row.meta.dataset == task.name]
        rows.sort(key=lambda row: row.meta.name)
        if method == "random_parent":
            (chosen,) = np.random.RandomState([seed, *name.encode()]).choice(len(rows), 1)
            row = rows[chosen]
            score, made = _transformed(model, models, row.id)
        else:
            score, made, row = max(
                ((*_same_shape(model, models, row.id), row) for row in rows),
                key=lambda each: each[1].carried,
            )
    take_over(model, made, batches)
    rate.lower_at_first(model, LOWER_RATE * made.carried, RAMP_STEPS)
    return Start(row.meta.name, score, made.carried)


def _transformed(model: keras.Model, zoo: Zoo, parent: str) -> tuple[float, Transformed]:
    graph = graph_of(model)
    entry, values = zoo.fetch(parent)
    found = match(prepare(outline_of(graph)), prepare(outline_of(entry.graph)))
    own = {name: weight.numpy() for name, weight in named_weights(model).items()}
    made = transform(graph, own, entry.graph, values, found.pairs)
    return found.score, made


def _same_shape(model: keras.Model, zoo: Zoo, parent: str) -> tuple[float, Transformed]:
    """Only what has the same shape is copied; all else is fresh."""
    score, made = _transformed(model, zoo, parent)
    own = {name: weight.numpy() for name, weight in named_weights(model).items()}
    copied = made.names("copied")
    values = {name: made.values[name] if name in copied else own[name] for name in own}
    report = tuple(each for each in made.report if each.name in copied)
    rest = sum(each.parameters for each in made.report) - sum(each.parameters for each in report)
    return score, Transformed(values, (*report, TensorReport("the others", "fresh", rest)))
