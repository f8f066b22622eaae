"""What each rank keeps comes back, on as many ranks as there are then."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.step.rank_state import RESIDUAL, RankState
from tests.ranks_in_threads import on_ranks

ALIKE = "the same on all ranks"


@pytest.mark.parametrize(("before", "after"), [*itertools.product((1, 2, 3), repeat=2)])
def test_residuals_add_up_to_what_they_were(
    monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    random = np.random.default_rng(0)
    lost = random.integers(-9, 9, (before, 2, 3)).astype(np.float32)
    others = np.stack([np.float32([1, 2])] * before)

    def work(engine: Engine) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        state = RankState({RESIDUAL, ALIKE})
        by_rank = {f"{RESIDUAL}/w": lost, f"{ALIKE}/w": others} if engine.rank == 0 else {}
        state.restore(by_rank, engine)
        residual = state.variable(RESIDUAL, "w", lambda: tf.zeros((2, 3)))
        alike = state.variable(ALIKE, "w", lambda: tf.zeros(2))
        return residual.numpy(), alike.numpy(), state.gathered(engine)

    found = on_ranks(monkeypatch, work, after)
    assert not [each for each in found if isinstance(each, Exception)], found
    residuals, alike, gathered = zip(*found, strict=True)
    np.testing.assert_array_equal(sum(residuals), lost.sum(0))
    if before == after:
        np.testing.assert_array_equal(residuals, lost)
    np.testing.assert_array_equal(alike, others[:1].repeat(after, 0))
    np.testing.assert_array_equal(gathered[0][f"{RESIDUAL}/w"], residuals)
    assert not any(gathered[1:])  # rank 0 alone has them
