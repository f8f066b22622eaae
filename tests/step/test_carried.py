"""Exchanges that outlive their call: two real workers with each engine, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from ooodist.engines.local import LocalEngine
from ooodist.step.carried import (
    WEIGHT_BY_WEIGHT,
    CarriedGradients,
    Carrying,
    why_not_carried,
)
from tests.jobs import ENGINES, run_checks

WORKER = Path(__file__).with_name("carried_worker.py")
OF_EACH_ENGINE = ["launches_of_different_plans_take_turns"]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers(engine: str) -> None:
    printed = run_checks(engine, WORKER, OF_EACH_ENGINE, seconds=600)
    if engine == "collective":
        assert printed.count("fit ended early") >= 2
        assert "Each may look at the weights after each batch" in printed


def compiled(optimizer: Any, kind: type[keras.Model] = keras.Sequential) -> keras.Model:
    model = kind([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize("kind", WEIGHT_BY_WEIGHT, ids=lambda kind: kind.__name__)
def test_what_updates_each_weight_alone_can_be_carried(kind: Any) -> None:
    options = {"weight_decay": 0.1, "clipnorm": 1.0, "use_ema": True}
    assert why_not_carried(compiled(kind(**options))) is None
    assert len(WEIGHT_BY_WEIGHT) >= 11


class Own(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class OwnAdam(keras.optimizers.Adam):
    """May do anything."""


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (compiled("sgd", Own), "Own has a train_step of its own"),
        (compiled("nadam"), "Nadam is not known to update each weight from its own"),
        (compiled(OwnAdam()), "OwnAdam is not known"),
        (compiled(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())), "LossScale"),
        (compiled(keras.optimizers.SGD(global_clipnorm=0.5)), r"global_clipnorm = 0\.5"),
        (compiled(keras.optimizers.SGD(gradient_accumulation_steps=3)), "steps = 3"),
        (compiled(keras.optimizers.SGD(lambda: 0.5)), "function of more than the number of steps"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_what_needs_all_gradients_cannot(model: keras.Model, why: str) -> None:
    assert re.search(why, str(why_not_carried(model)))


@pytest.mark.usefixtures("local_engine")
def test_nothing_left_is_nothing_to_do() -> None:
    import ooodist
    from ooodist import engines

    carrying = Carrying(engines.current())
    carrying.flush()
    carrying.abandon()
    assert carrying.take(None) is None
    carrying.flush_also_abandoned()
    model = compiled("sgd")
    with pytest.raises(ooodist.UserError, match=r"was not given to ooodist\.distribute"):
        ooodist.flush(model)
    ooodist.flush(ooodist.distribute(model))  # one process


class MadeUpUpdates:
    """Notes what is applied."""

    names = ("w",)

    def __init__(self) -> None:
        self.applied: list[int] = []

    def nothing(self) -> CarriedGradients:
        return left_of(-1)

    def apply(self, left: CarriedGradients) -> None:
        self.applied.append(int(left.count))


def left_of(step: int) -> CarriedGradients:
    return CarriedGradients((), tf.constant(step), None, tf.constant(step >= 0))


def test_what_was_abandoned_may_be_applied_until_the_next_call() -> None:
    updates: Any = MadeUpUpdates()
    carrying = Carrying(LocalEngine())
    for step in (3, 5):
        carrying.keep(updates, left_of(step))
        carrying.abandon()
        carrying.flush()
    assert not updates.applied
    carrying.flush_also_abandoned()
    carrying.flush_also_abandoned()
    assert updates.applied == [5]
    carrying.keep(updates, left_of(7))
    carrying.abandon()
    begun = carrying.take(updates)
    assert begun is not None
    assert not begun.is_there
    carrying.flush_also_abandoned()
    assert updates.applied == [5]
