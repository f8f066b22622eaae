"""The learning rate after a warm start: its values, its optimizers, and that it can be saved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras.optimizers.schedules import CosineDecay, LearningRateSchedule, PiecewiseConstantDecay

from ooodist.trainer.resume import is_scheduled
from ooodist.transfer.rate import WarmStartRate, lower_at_first
from tests.jobs import ROOT
from tests.zoo.starts import compiled, network, stripes


def at(rate: LearningRateSchedule, *steps: int) -> list[float]:
    return [float(rate(step)) for step in steps]


def rate_at(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    inner.iterations.assign(step)
    return float(inner.learning_rate)


# The schedule


def test_values_of_a_number() -> None:
    rate = WarmStartRate(0.1, 0.4, 10)
    assert at(rate, 0, 5, 10, 1000) == pytest.approx([0.04, 0.07, 0.1, 0.1], rel=1e-6)


def test_values_of_a_schedule() -> None:
    """The factor is beside what the schedule does."""
    cosine = CosineDecay(1.0, 100)
    rate = WarmStartRate(cosine, 0.5, 20)
    factors = {0: 0.5, 10: 0.75, 20: 1.0, 60: 1.0, 100: 1.0, 500: 1.0}
    for step, factor in factors.items():
        assert float(rate(step)) == pytest.approx(factor * float(cosine(step)), rel=1e-6, abs=1e-9)


@given(st.floats(1e-4, 10), st.floats(0.01, 1), st.integers(1, 1000), st.integers(0, 2000))
def test_it_rises_from_the_first_to_the_last_and_stays(
    number: float, first: float, steps: int, step: int
) -> None:
    rate = WarmStartRate(number, first, steps)
    here, next_one = at(rate, step, step + 1)
    assert first * number * (1 - 1e-5) <= here <= next_one * (1 + 1e-6) <= number * (1 + 1e-5)
    assert at(rate, 0, steps, steps + step) == pytest.approx([first * number, number, number])


@pytest.mark.parametrize("rate", [0.25, CosineDecay(0.25, 40), PiecewiseConstantDecay([5], [1, 2])])
def test_it_comes_back_from_its_config(rate: Any) -> None:
    before = WarmStartRate(rate, 0.3, 7)
    after = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(before))
    assert isinstance(after, WarmStartRate)
    assert at(after, 0, 3, 7, 30) == at(before, 0, 3, 7, 30)
    assert (after.first, after.steps) == (0.3, 7)


# Optimizers


class Halved(LearningRateSchedule):  # type: ignore[misc, unused-ignore]
    """One of a user's own, which nobody has registered."""

    def __call__(self, step: Any) -> Any:
        return 0.5 / (1 + keras.ops.cast(step, "float32"))


OPTIMIZERS = {
    "sgd": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adam": keras.optimizers.Adam,
    "loss scale": lambda rate: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(rate)),
}


@pytest.mark.parametrize("rate", [0.5, CosineDecay(0.5, 1000), Halved()], ids=type)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_optimizer_begins_lower(make: Any, rate: Any) -> None:
    plain = make(rate)
    model = compiled(network(), make(rate))
    lower_at_first(model, 0.6, 10)
    for step, factor in ((0, 0.4), (5, 0.7), (10, 1.0), (25, 1.0)):
        expected = factor * rate_at(plain, step)
        assert rate_at(model.optimizer, step) == pytest.approx(expected, rel=1e-5), step


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_share_of_nothing_changes_nothing(make: Any) -> None:
    model = compiled(network(), make(0.5))
    before = [variable.path for variable in model.optimizer.variables]
    lower_at_first(model, 0.0, 10)
    assert [variable.path for variable in model.optimizer.variables] == before
    assert not is_scheduled(model.optimizer)
    model.optimizer.learning_rate = 0.25  # it can still be set
    assert float(model.optimizer.learning_rate) == 0.25


def test_all_optimizers_of_a_model_begin_lower() -> None:
    model = compiled(network(), keras.optimizers.SGD(1.0))
    model.second = keras.optimizers.SGD(2.0)
    lower_at_first(model, 0.5, 4)
    assert rate_at(model.optimizer, 0) == 0.5
    assert rate_at(model.second, 0) == 1.0


def test_steps_are_by_the_lower_rate() -> None:
    """With plain SGD, the first step is exactly half of what it would be."""
    moves = []
    for share in (0.0, 0.5):
        model = compiled(network(), keras.optimizers.SGD(0.125))
        lower_at_first(model, share, 100)
        before = model.get_layer("head").kernel.numpy().astype(np.float64)
        model.train_on_batch(*stripes())
        moves.append(model.get_layer("head").kernel.numpy() - before)
    np.testing.assert_allclose(moves[1], moves[0] / 2, rtol=0, atol=1e-7)  # of weights below 1


def test_with_mixed_precision(tmp_path: Path) -> None:
    model = compiled(network(dtype="mixed_float16"), keras.optimizers.Adam(0.5))
    assert type(model.optimizer).__name__ == "Adam"  # the global policy is not mixed
    model = compiled(
        network(dtype="mixed_float16"),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.5), initial_scale=4.0),
    )
    lower_at_first(model, 0.5, 10)
    model.train_on_batch(*stripes())
    assert int(model.optimizer.inner_optimizer.iterations) == 1
    assert float(model.optimizer.inner_optimizer.learning_rate) == pytest.approx(0.275)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert float(again.optimizer.inner_optimizer.learning_rate) == pytest.approx(0.275)


# Files


@pytest.mark.parametrize("rate", [0.5, CosineDecay(0.5, 1000)], ids=type)
def test_a_saved_model_goes_on_in_the_middle(rate: Any, tmp_path: Path) -> None:
    model = compiled(network(), keras.optimizers.Adam(rate))
    lower_at_first(model, 0.5, 6)
    for _ in range(3):
        model.train_on_batch(*stripes())
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert int(again.optimizer.iterations) == 3
    assert float(again.optimizer.learning_rate) == float(model.optimizer.learning_rate)
    for trained in (model, again):
        trained.train_on_batch(*stripes())
    for one, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_saved_model_is_loaded_where_there_is_no_ooodist(tmp_path: Path) -> None:
    model = compiled(network(), keras.optimizers.Adam(0.5))
    lower_at_first(model, 0.5, 10)
    model.train_on_batch(*stripes())
    model.save(tmp_path / "model.keras")
    program = (
        "import sys, keras\n"
        f"model = keras.models.load_model({str(tmp_path / 'model.keras')!r})\n"
        "print(float(model.optimizer.learning_rate), 'ooodist' in sys.modules)"
    )
    job = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert job.returncode == 0, job.stderr[-2000:]
    rate, imported = job.stdout.split()
    assert float(rate) == pytest.approx(0.275)
    assert imported == "False"
