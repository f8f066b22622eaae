"""The fall of the loss in a stretch, from running means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.elastic.auto.fall_meter import STRETCH, FallMeter
from ooodist.errors import UserError


@given(
    st.lists(st.floats(0, 10), min_size=2 * STRETCH, max_size=2 * STRETCH),
    st.integers(1, 4).filter(lambda number: STRETCH // 2 % number == 0),
    st.integers(7, 200),
)
def test_a_fall_is_the_difference_of_the_halves_whatever_calls_and_epochs(
    losses: list[float], per_call: int, epoch: int
) -> None:
    meter, found = FallMeter(), []
    begin = 0
    for end in range(per_call, len(losses) + 1, per_call):
        meter.ran(per_call, {"loss": np.mean(losses[begin:end])})
        if (fall := meter.ended()) is not None:
            found.append(fall)
        if end - begin >= epoch:
            meter.end_epoch()
            begin = end
    halves = np.array(losses).reshape(-1, STRETCH // 2).mean(axis=1)
    assert found == pytest.approx((halves[::2] - halves[1::2]) / (STRETCH // 2), abs=1e-9)


def test_a_train_step_without_a_loss_is_refused() -> None:
    with pytest.raises(UserError, match="returns no loss, only accuracy; return one"):
        FallMeter().ran(1, {"accuracy": 0.5})


@pytest.mark.parametrize(("updates", "stretch"), [(None, 60), (600, 60), (10_000, 200)])
def test_long_trainings_have_long_stretches(updates: int | None, stretch: int) -> None:
    assert FallMeter(updates).updates == stretch
