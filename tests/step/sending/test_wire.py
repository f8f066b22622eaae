"""Gradients in 16 bits: what is sent, what is kept, and two real workers with each engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.step.optimizer import loss_scale
from ooodist.step.rank_state import RESIDUAL, RankState
from ooodist.step.sending.wire import WIRES, ErrorFeedback, Wire
from tests.jobs import ENGINES, run_checks

WORKER = Path(__file__).with_name("wire_worker.py")
OF_EACH_ENGINE = [
    "means_are_those_of_rounded_gradients",
    "ranks_end_alike",
    "ranks_end_alike_with_gradients_in_low_rank",
    "a_plan_in_low_rank_computes_what_low_rank_alone_does",
    "a_plan_in_low_rank_is_found",
]
NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
wires = st.sampled_from(WIRES)
# Up to float32's largest: no rank has a gradient that is infinite, but their sum may be.
values = st.floats(allow_nan=False, allow_infinity=False, width=32)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers(engine: str) -> None:
    run_checks(engine, WORKER, OF_EACH_ENGINE)


class Ranks(LocalEngine):
    """An engine with so many ranks, of which the test plays all."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


def summed(sent: list[np.ndarray]) -> np.ndarray:
    """One after the other, each sum rounded, as engines do."""
    total = sent[0]
    for other in sent[1:]:
        total = total + other
    return total


@given(wires, st.lists(st.lists(values, min_size=3, max_size=3), min_size=1, max_size=9))
def test_no_sum_of_finite_gradients_is_infinite(wire: str, gradients: list[list[float]]) -> None:
    ranks = Wire(Ranks(len(gradients)), wire, None)
    sent = [ranks.sent("w", tf.constant(each, tf.float32)).numpy() for each in gradients]
    assert all(each.dtype == NUMPY[wire] for each in sent)
    assert np.isfinite(summed(sent).astype(np.float64)).all()


def test_nor_is_the_largest_of_many_ranks() -> None:
    for wire in WIRES:
        for size in (1, 2, 3, 7, 64, 1000):
            largest = tf.constant([3.4e38, -3.4e38])
            sent = [Wire(Ranks(size), wire, None).sent("w", largest).numpy()] * size
            assert np.isfinite(summed(sent).astype(np.float64)).all()


@given(wires, st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=12), st.integers(1, 5))
def test_what_is_lost_is_sent_later(wire: str, gradients: list[float], size: int) -> None:
    """What was sent so far, and what is kept, add up to the gradients so far.

    But for what float32 rounds each time: half a unit in the last place, twice (what is kept adds
    less than 5 %), and for numbers below 1e-38, which are taken for zero.
    """
    rounded = 2.1 * 2**-24 * max(abs(gradient) for gradient in gradients) / size
    feedback = ErrorFeedback()
    rank = Wire(Ranks(size), wire, feedback)
    sent = 0.0
    for number, gradient in enumerate(gradients, start=1):
        sent += float(rank.sent("w", tf.constant([gradient])).numpy()[0])
        (kept,) = feedback.values()["w"]
        wanted = sum(gradients[:number]) / size
        assert sent + float(kept) == pytest.approx(wanted, rel=0, abs=number * rounded + 1e-36)


def test_gradients_too_small_for_float16_add_up_with_feedback_alone() -> None:
    tiny = tf.constant([1e-9])
    for feedback, least in ((ErrorFeedback(), 0.94e-6), (None, 0.0)):
        rank = Wire(Ranks(1), "float16", feedback)
        total = sum(float(rank.sent("w", tiny).numpy()[0]) for _ in range(1000))
        assert least <= total <= 1.13 * least  # the smallest number of float16 is 6e-8


def test_what_is_not_finite_stays_so_and_leaves_the_residual_as_it_was() -> None:
    feedback = ErrorFeedback()
    rank = Wire(Ranks(2), "float16", feedback)
    rank.sent("w", tf.fill([3], 1 + 2**-12))
    before = feedback.values()["w"]
    assert (before != 0).all()
    sent = rank.sent("w", tf.constant([np.nan, np.inf, -np.inf])).numpy()
    np.testing.assert_array_equal(sent, [np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(feedback.values()["w"], before)


def test_gradients_of_the_wires_dtype_lose_nothing_and_keep_nothing() -> None:
    feedback = ErrorFeedback()
    gradient = tf.cast(tf.random.stateless_normal([1000], (1, 2)), tf.bfloat16)
    sent = Wire(Ranks(2), "bfloat16", feedback).sent("w", gradient)
    np.testing.assert_array_equal((2 * sent).numpy(), gradient.numpy())
    assert not feedback.values()


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_gradients_of_any_float_dtype_travel_in_any_wire(dtype: tf.DType) -> None:
    for wire in WIRES:
        rank = Wire(Ranks(1), wire, ErrorFeedback())
        assert rank.takes(dtype)
        sent = rank.sent("w", tf.constant([0.5, -3.0], dtype))
        assert sent.dtype.name == wire
        np.testing.assert_array_equal(tf.cast(sent, tf.float64).numpy(), [0.5, -3.0])
        assert not rank.takes(tf.complex64)


def test_residuals_do_not_depend_on_the_scale_of_the_loss() -> None:
    scale = tf.Variable(4.0)
    plain, scaled = ErrorFeedback(), ErrorFeedback(lambda: tf.convert_to_tensor(scale))
    gradients = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    for gradient, factor in zip(gradients, (4.0, 8.0, 8.0, 2.0, 1024.0), strict=True):
        scale.assign(factor)
        ours = Wire(Ranks(2), "float16", scaled).sent("w", tf.constant(gradient * factor))
        theirs = Wire(Ranks(2), "float16", plain).sent("w", tf.constant(gradient))
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy() * np.float16(factor))
        np.testing.assert_array_equal(scaled.values()["w"], plain.values()["w"])


def test_a_scale_is_found_only_where_it_is_clear() -> None:
    def model(*optimizers: Any) -> keras.Model:
        made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        made.compile(optimizers[0], "mse")
        for number, optimizer in enumerate(optimizers[1:]):
            setattr(made, f"optimizer_{number}", optimizer)
        return made

    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=8.0)
    scaling.build([])
    assert loss_scale(model("sgd")) is None
    assert loss_scale(model("sgd", keras.optimizers.Adam())) is None
    assert float(loss_scale(model(scaling))) == 8.0
    with pytest.raises(UserError, match=r"2 optimizers, of which 1 scale .*feedback to false"):
        loss_scale(model("sgd", scaling))


def test_residuals_come_back() -> None:
    feedback = ErrorFeedback()
    rank = Wire(Ranks(2), "float16", feedback)
    for number in range(3):
        rank.sent("w", tf.fill([2, 3], 0.1 + number))
    state = RankState({RESIDUAL})
    other = ErrorFeedback(state=state)
    saved = {**feedback.values(), "selected later": np.ones(3, np.float32)}
    by_rank = {f"{RESIDUAL}/{name}": value[np.newaxis] for name, value in saved.items()}
    state.restore(by_rank, LocalEngine())
    ours, theirs = (Wire(Ranks(2), "float16", each) for each in (feedback, other))
    for _ in range(2):
        np.testing.assert_array_equal(
            ours.sent("w", tf.fill([2, 3], 0.7)).numpy(),
            theirs.sent("w", tf.fill([2, 3], 0.7)).numpy(),
        )
    np.testing.assert_array_equal(feedback.values()["w"], other.values()["w"])
    np.testing.assert_array_equal(other.values()["selected later"], np.ones(3))
    with pytest.raises(UserError, match=r"residual/selected later has the shape \(3,\)"):
        theirs.sent("selected later", tf.zeros([4]))


def test_what_an_engine_cannot_sum_is_refused() -> None:
    class Narrow(LocalEngine):
        name = "horovod"
        wires = ("float16",)

    with pytest.raises(UserError, match="bfloat16, which engine horovod cannot sum; give float16,"):
        Wire(Narrow(), "bfloat16", None)
    with pytest.raises(UserError, match="'int8'; it must be one of float16, bfloat16, or float32"):
        Wire(Narrow(), "int8", None)
