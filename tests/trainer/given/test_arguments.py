"""Overrides of fit, evaluate, train_on_batch and predict, whatever their signatures."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist.trainer.given.arguments import KerasMethod
from tests.jobs import run_job
from tests.trainer.given.overrides import (
    BATCH,
    Collects,
    Decorated,
    Few,
    MakesBatches,
    OneArgument,
    Stars,
    Twice,
    data,
    made,
    with_lambda,
)

X, Y = data()
USUAL: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "epochs": 2, "verbose": 0}
ROUNDS: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "rounds": 2, "verbose": 0}
HELD = {"validation_data": data(20)}


@functools.cache
def alone(weighted: bool) -> tuple[dict[str, list[float]], list[np.ndarray]]:
    """What Keras's own fit gives."""
    model = made()
    options = USUAL | HELD | ({"class_weight": {1: 3.0}} if weighted else {})
    return model.fit(X, Y, **options).history, model.get_weights()


@pytest.mark.parametrize(
    ("model", "args", "kwargs"),
    [
        (lambda: made(Collects), (X, Y), USUAL | HELD | {"class_weight": {1: 3.0}}),
        (lambda: made(Stars), (X, Y, BATCH), {"shuffle": False, "epochs": 2} | HELD),
        (lambda: made(Decorated), (X,), {"y": Y} | USUAL | HELD),
        (lambda: made(Few), (X, Y, 2), HELD),
        (lambda: made(Twice), ((X, Y),), USUAL),
        (lambda: made(OneArgument), ((X, Y),), ROUNDS | HELD),
        (lambda: made(MakesBatches), ((X, Y),), {"epochs": 2}),
        (with_lambda, (X, Y), USUAL | HELD),
    ],
    ids=["collects", "stars", "decorated", "few", "twice", "one", "makes batches", "lambda"],
)
def test_fit_is_the_models_own(model: Callable[[], Any], args: Any, kwargs: Any) -> None:
    ooodist.init("local")
    expected, weights = alone(weighted="class_weight" in kwargs)
    ours = ooodist.distribute(model())
    found = ours.fit(*args, **kwargs).history
    has_held = "validation_data" in kwargs
    assert found.keys() == {name for name in expected if has_held or not name.startswith("val_")}
    for name, values in found.items():  # of both epochs, or of the second alone
        assert values == expected[name][-len(values) :]
    assert int(ours.optimizer.iterations) == 2 * len(X) // BATCH
    for one, other in zip(ours.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_options_of_overrides_are_checked() -> None:
    ooodist.init("local")
    model = ooodist.distribute(made(Collects), accumulate=16)
    with pytest.raises(ooodist.UserError, match="accumulate is 16, but an epoch has only 8"):
        model.fit(X, Y, batch_size=BATCH)


def test_single_batches_of_overrides_and_their_plan() -> None:
    ooodist.init("local")
    alone, ours = made(Decorated), ooodist.distribute(made(Decorated), order="planned")
    for _ in range(2):
        options = {"class_weight": {1: 2.0}, "return_dict": True}
        expected = alone.train_on_batch(X[:BATCH], Y[:BATCH], **options)
        assert ours.train_on_batch(X[:BATCH], Y[:BATCH], **options) == expected
    assert ours.ooodist.strategy.planned is not None


def test_an_override_that_never_calls_kerass_fit_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Nothing(keras.Model):
        def fit(self) -> None:
            pass

    ooodist.init("local")
    model = ooodist.distribute(made(Nothing))
    with caplog.at_level(logging.WARNING, "ooodist"):
        model.fit()
    assert "fit of Nothing has not called Keras's own fit" in caplog.text


@pytest.mark.parametrize(
    ("given", "samples"),
    [
        (((X, Y),), 64),
        (({"text": ["a", "b", "c"], "label": [1, 0, 1]},), 3),
        ((tf.data.Dataset.range(3),), -1),
        ((iter([X]), 3), -1),
        ((object(), "adam", [keras.callbacks.History()]), None),
    ],
)
def test_what_data_was_made_of(given: Any, samples: int | None) -> None:
    batches = tf.data.Dataset.range(9)
    found = []

    def ours(*args: Any, **kwargs: Any) -> None:
        made_of = method.made(method.bind(args, kwargs)["x"], "x")
        found.append(-1 if made_of is None else made_of.samples)

    class Any_(keras.Model):
        def fit(self, *args: Any) -> Any:
            return super().fit(batches)

    model = made(Any_)
    method = KerasMethod(model, "fit", ours)
    model.fit(*given)
    assert found == [samples]


def test_two_workers_share_out_the_data_of_overrides() -> None:
    worker = Path(__file__).with_name("arguments_worker.py")
    job = run_job("collective", 2, worker, "all", seconds=300)
    assert job.returncode == 0, job.stdout[-6000:]
    assert len(re.findall(r"passed \w+", job.stdout)) == worker.read_text().count("@check\n")
