"""Gradients in low rank: what is sent and what is kept add up to all gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import ooodist
from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.step.rank_state import RESIDUAL, RankState
from ooodist.step.sending.low_rank import OWNER, LowRank, columns_of, orthonormal
from ooodist.step.sending.wire import ErrorFeedback
from tests.job.test_distribute import make


def ranks(number: int, rank: int) -> list[LowRank]:
    made = []
    for _ in range(number):
        state = RankState({RESIDUAL, OWNER})
        made.append(LowRank(state, ErrorFeedback(state=state), number, rank))
    return made


def step(all_ranks: list[LowRank], gradients: np.ndarray) -> np.ndarray:
    """What each rank takes for the mean of the gradients, of shape (ranks, n, m)."""
    own = zip(all_ranks, gradients, strict=True)
    begun = [r.begin("w", tf.constant(g), r.rank or 0) for r, g in own]
    left = tf.add_n([each.left for each in begun])
    halfway = [r.go_on(each, left) for r, each in zip(all_ranks, begun, strict=True)]
    right = tf.add_n([each.own for each in halfway])
    means = [r.end(each, right) for r, each in zip(all_ranks, halfway, strict=True)]
    for mean in means[1:]:
        np.testing.assert_array_equal(mean, means[0])
    return means[0].numpy()


def residuals(all_ranks: list[LowRank]) -> np.ndarray:
    return np.stack([r._feedback.values()["w"] for r in all_ranks])


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 4), st.integers(4, 6), st.integers(4, 6), st.integers(0, 99)
)
def test_nothing_is_lost_for_good(number: int, rank: int, n: int, m: int, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    all_ranks = ranks(number, rank)
    wanted, applied = np.zeros((n, m)), np.zeros((n, m))
    for _ in range(4):
        gradients = numbers.normal(size=(number, n, m)).astype(np.float32)
        wanted += gradients.mean(0)
        applied += step(all_ranks, gradients)
        left = residuals(all_ranks).sum(0)
        np.testing.assert_allclose(applied + left, wanted, atol=1e-4)


def test_the_error_is_what_is_lost_of_the_last_gradients() -> None:
    gradients = np.random.default_rng(0).normal(size=(2, 12, 9)).astype(np.float32)
    all_ranks, lost = ranks(2, 2), np.zeros_like(gradients)
    for _ in range(2):
        wanted = gradients / 2 + lost
        step(all_ranks, gradients)
        lost = residuals(all_ranks)
        for rank, of_all, left in zip(all_ranks, wanted, lost, strict=True):
            expected = np.linalg.norm(left) / np.linalg.norm(of_all)
            assert 0.1 < expected < 0.99
            assert rank.error(LocalEngine()) == pytest.approx(expected, rel=1e-5)
            assert rank.error(LocalEngine()) == 0  # there was no step since


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_of_full_rank_it_is_the_mean(shape: tuple[int, int]) -> None:
    gradients = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    np.testing.assert_allclose(step(ranks(2, 4), gradients), gradients.mean(0), atol=1e-5)


def test_the_approximation_of_one_gradient_becomes_the_best_of_its_rank() -> None:
    """Each step is one of the power iteration: it finds the largest singular values."""
    numbers = np.random.default_rng(0)
    left, right = (np.linalg.qr(numbers.normal(size=(size, 5)))[0] for size in (20, 12))
    matrix = ((left * [9.0, 5.0, 0.3, 0.2, 0.1]) @ right.T).astype(np.float32)
    (rank,) = all_ranks = ranks(1, 2)
    for _ in range(5):
        mean = step(all_ranks, matrix[np.newaxis])
        rank._feedback._state._variables[f"{RESIDUAL}/w"].assign(tf.zeros([20, 12]))
    best = (left[:, :2] * [9.0, 5.0]) @ right[:, :2].T
    np.testing.assert_allclose(mean, best, atol=1e-2)


def test_what_is_not_finite_spoils_no_later_step() -> None:
    """As with loss scaling, which leaves such a step out."""
    numbers = np.random.default_rng(0)
    gradients = numbers.normal(size=(3, 2, 12, 9)).astype(np.float32)
    spoiled, others = ranks(2, 2), ranks(2, 2)
    for all_ranks in (spoiled, others):
        step(all_ranks, gradients[0])
    for bad in (np.inf, np.nan):
        gradients[1, 0, 3, 4] = bad
        assert not np.isfinite(step(spoiled, gradients[1])).all()
    for one, other in zip(spoiled, others, strict=True):
        for owner in (RESIDUAL, OWNER):
            one_state, other_state = (r._state.values(owner) for r in (one, other))
            assert one_state.keys() == other_state.keys()
            for name, value in one_state.items():
                np.testing.assert_array_equal(value, other_state[name])
        assert 0 < one.error(LocalEngine()) == other.error(LocalEngine()) < 1
    np.testing.assert_array_equal(step(spoiled, gradients[2]), step(others, gradients[2]))


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([np.float32, np.float64]),
    st.integers(1, 8),
    st.integers(8, 300),
    st.lists(st.floats(-18, 18), min_size=8, max_size=8),
    st.integers(0, 7),
    st.integers(0, 99),
)
def test_orthonormal_rows_span_the_columns(
    dtype: type[np.floating], rank: int, n: int, exponents: list[float], alike: int, seed: int
) -> None:
    """Of any length, and also if a column is nearly that before it, or quite, or zero."""
    numbers = np.random.default_rng(seed)
    columns = numbers.normal(size=(n, rank)) * 10 ** np.array(exponents[:rank])
    if 0 < alike < rank:
        nearly = (0, 1e-9, 1e-6, 1e-4, 1e-2)[seed % 5]
        other = numbers.normal(size=n) * np.linalg.norm(columns[:, alike - 1])
        columns[:, alike] = (columns[:, alike - 1] + nearly * other) * (seed % 7 > 0)
    columns = columns.astype(dtype)
    rows = orthonormal(tf.constant(columns)).numpy()
    assert (rows.shape, rows.dtype) == ((rank, n), dtype)
    wide = rows.astype(np.float64)
    np.testing.assert_allclose(wide @ wide.T, np.eye(rank), atol=1e-5)
    lengths = np.linalg.norm(columns.astype(np.float64), axis=0)
    missed = np.linalg.norm(columns - wide.T @ (wide @ columns), axis=0)
    assert (missed <= 1e-5 * lengths).all()


def test_orthonormal_rows_of_what_is_not_finite_are_not() -> None:
    columns = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    for bad in (np.nan, np.inf):
        columns[4, 1] = bad
        assert not np.isfinite(orthonormal(tf.constant(columns)).numpy()).all()


def test_how_often_a_gradient_is_read_and_written() -> None:
    """On one core of a host, such passes are most of what low rank costs."""
    (rank,), (n, m) = ranks(1, 4), (60, 50)

    @tf.function(autograph=False)
    def sent(gradient: tf.Tensor) -> tf.Tensor:
        begun = rank.begin("w", gradient, 4)
        halfway = rank.go_on(begun, begun.left)
        return rank.end(halfway, halfway.own)

    graph = sent.get_concrete_function(tf.TensorSpec((n, m))).graph
    moves = {"Placeholder", "Identity", "Reshape", "ReadVariableOp", "AssignVariableOp", "If"}
    ops = [op for op in graph.get_operations() if op.type not in moves]
    reads, writes = (
        sum(tensor.shape.num_elements() == n * m for op in ops for tensor in tensors(op))
        for tensors in (lambda op: op.inputs, lambda op: op.outputs)
    )
    assert (reads, writes) == (7, 5)


def test_what_travels_in_low_rank() -> None:
    (rank,) = ranks(1, 4)
    assert rank.rank_of(tf.zeros([100, 50])) == 4
    assert rank.rank_of(tf.zeros([3, 3, 64, 64])) == 4
    assert rank.rank_of(tf.zeros([8, 8])) is None  # 64 numbers as they are
    assert rank.rank_of(tf.zeros([1000])) is None
    assert rank.rank_of(tf.zeros([100, 50], tf.int32)) is None
    assert rank.rank_of(tf.IndexedSlices(tf.zeros([2, 50]), tf.constant([0, 1]))) is None
    assert columns_of(tf.zeros([3, 3, 64, 32])) == 32


def test_convolutions_and_halves_keep_shape_and_dtype() -> None:
    for dtype in (tf.float16, tf.bfloat16, tf.float64):
        (rank,) = ranks(1, 2)
        gradient = tf.cast(tf.random.normal([3, 3, 8, 16]), dtype)
        begun = rank.begin("w", gradient, 2)
        assert begun.left.shape == (72, 2)
        halfway = rank.go_on(begun, begun.left)  # one rank's sums are its own
        mean = rank.end(halfway, halfway.own)
        assert (mean.shape, mean.dtype) == (gradient.shape, dtype)


@pytest.mark.parametrize(
    ("after", "left", "first"), [(0, None, 0), (3, None, 3), (0.25, 8, 2), (0.01, 8, 0), (9, 8, 9)]
)
def test_when_low_rank_begins(after: float, left: int | None, first: int) -> None:
    low_rank = LowRank(RankState(), ErrorFeedback(), 2, 4, after)
    assert low_rank.is_on == (after == 0)
    due = [low_rank.is_due(step, left and left - step) for step in range(10)]
    assert due == [step >= first for step in range(10)]
    assert LowRank(RankState(), ErrorFeedback(), 1, 4, after).is_on  # nothing travels


def test_a_share_of_an_unknown_number_of_steps_is_refused() -> None:
    low_rank = LowRank(RankState(), ErrorFeedback(), 2, 4, 0.1)
    with pytest.raises(UserError, match=r"low_rank_after is 0\.1, a share .*a number of steps"):
        low_rank.is_due(3, None)


@pytest.mark.usefixtures("local_engine")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low_rank": 0}, "low_rank is 0; it must be"),
        ({"wire": "float16"}, "low_rank is 4, but wire is float16"),
        ({"wire": "planned", "order": "planned"}, "low_rank is 4, but wire is planned"),
        ({"low_rank": "auto"}, "low_rank is auto, but the order is inorder: no plan is made"),
        ({"low_rank": "all"}, "low_rank is all; it must be"),
        ({"low_rank_after": 1.0}, "low_rank_after is 1.0; it must be a whole number"),
        ({"low_rank_after": 5, "low_rank": None}, "low_rank_after is 5, but low_rank is not given"),
        ({"elastic": {"rho": 0.5}}, "low_rank is 4, but elastic"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ooodist.distribute(make(), **{"low_rank": 4, **options})
