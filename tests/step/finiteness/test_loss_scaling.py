"""Loss scaling: whether all is finite is agreed on early, and the numbers are those of Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.engines.local import LocalEngine
from ooodist.step.finiteness.loss_scaling import EarlyVerdict, can_be_early
from tests.jobs import ENGINES, run_checks
from tests.ranks_in_threads import on_ranks

WORKER = Path(__file__).with_name("loss_scaling_worker.py")
optimizers = keras.optimizers


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers(engine: str) -> None:
    run_checks(engine, WORKER, ["the_numbers_are_those_of_keras"])


class TwoWorkers(LocalEngine):
    """Says that there are two."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 2


class Own(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def compiled(optimizer: Any, kind: type[keras.Model] = keras.Sequential) -> keras.Model:
    made = kind([keras.Input((3,)), keras.layers.Dense(2)])
    made.compile(optimizer, "mse")
    made.optimizer.build(made.trainable_variables)
    return made


@pytest.mark.parametrize(
    ("inner", "kind", "expected"),
    [
        (optimizers.Adam(), keras.Sequential, True),
        (optimizers.Adam(clipnorm=1.0), keras.Sequential, True),
        (optimizers.Adam(global_clipnorm=1.0), keras.Sequential, False),
        (optimizers.SGD(gradient_accumulation_steps=2), keras.Sequential, False),
        (optimizers.Nadam(), keras.Sequential, False),
        (optimizers.Adam(), Own, False),
    ],
)
def test_what_can_be_updated_one_by_one(inner: Any, kind: Any, expected: bool) -> None:
    made = compiled(optimizers.LossScaleOptimizer(inner), kind)
    assert can_be_early(made, TwoWorkers()) == expected
    assert not can_be_early(made, LocalEngine())  # alone, all is as in Keras
    assert not can_be_early(compiled("sgd"), TwoWorkers())


@pytest.mark.parametrize(
    ("of_ranks", "expected"),
    [
        ((1.0, -1e38), True),
        ((1.0, np.nan), False),
        ((-np.inf, 1.0), False),
        ((2e38, 2e38), False),  # each is finite, their sum is not
    ],
)
def test_all_ranks_find_the_same_before_they_exchange(
    monkeypatch: pytest.MonkeyPatch, of_ranks: tuple[float, ...], expected: bool
) -> None:
    def work(engine: Engine) -> bool:
        made = compiled(optimizers.LossScaleOptimizer(optimizers.SGD()))
        verdict, is_finite = EarlyVerdict(made, engine), tf.Variable(0)

        def assign() -> None:
            is_finite.assign(1)

        def step() -> None:
            own = tf.constant([[0.0, of_ranks[engine.rank]]])
            rows = tf.IndexedSlices(own, tf.constant([1]), tf.constant([3, 2]))
            verdict.look_at([tf.zeros(2), None, rows])
            verdict.if_finite(assign)

        tf.function(step, autograph=False)()
        return bool(is_finite)

    assert on_ranks(monkeypatch, work) == [expected] * 2
