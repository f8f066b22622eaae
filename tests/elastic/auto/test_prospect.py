"""A training stays full until it is long enough to look for a smaller rho."""

from __future__ import annotations

import logging

import pytest

from ooodist.data_parallel.live_planning import MEASURED_STEPS
from ooodist.elastic.auto.fall_meter import FallMeter
from ooodist.elastic.auto.prospect import CALIBRATED, TRACED, Prospect
from ooodist.elastic.auto.rounds import MOST_LOST
from ooodist.engines.local import LocalEngine
from ooodist.trainer.live import TIMED_CALLS, WARM_UP_CALLS

FIRST, STEP = 3.0, 0.1
BEGUN = WARM_UP_CALLS + TIMED_CALLS


def trained(calls: int, *, kept: bool = True) -> Prospect:
    prospect = Prospect(LocalEngine(), lambda: kept)
    for number in range(calls):
        assert prospect.is_timing
        prospect.ran(1, STEP if number else FIRST)
    return prospect


def least(left: int, *, kept: bool) -> float:
    """Seconds that a training must take, of which so many updates are to come."""
    cost = TRACED * FIRST + FallMeter(left).updates * STEP
    if not kept:
        cost += CALIBRATED * FIRST + MEASURED_STEPS * STEP
    return cost / MOST_LOST


@pytest.mark.parametrize("kept", [True, False])
def test_it_is_worth_it_from_so_many_updates_on(kept: bool) -> None:
    assert not trained(BEGUN).is_timing
    trained_seconds = FIRST + (BEGUN - 1) * STEP
    enough = next(
        left for left in range(10**6) if trained_seconds + left * STEP >= least(left, kept=kept)
    )
    assert trained(BEGUN, kept=kept).is_worth(enough + 1)
    assert not trained(BEGUN, kept=kept).is_worth(enough - 1)


def test_nothing_is_decided_before_steps_were_timed() -> None:
    assert not any(trained(calls).is_worth(10**9) for calls in range(BEGUN))


def test_of_a_training_without_an_end_the_time_so_far_counts() -> None:
    prospect, calls = trained(BEGUN), BEGUN
    while not prospect.is_worth(None):
        prospect.ran(1)
        calls += 1
    assert least(0, kept=True) <= prospect.trained <= 2 * least(0, kept=True)
    assert (calls - BEGUN).bit_count() == 1  # in between, ranks do not wait for each other


def test_it_says_once_why_it_stays_full(caplog: pytest.LogCaptureFixture) -> None:
    prospect = trained(BEGUN)
    with caplog.at_level(logging.INFO, "ooodist"):
        for left in range(100, 0, -1):
            assert not prospect.is_worth(left)
            prospect.ran(1)
    (record,) = caplog.records
    assert record.getMessage() == (
        "elastic: rho auto: training goes on in full, as to measure and to try a smaller rho takes "
        "about 18 s, and 0.6 s of 14 s may be lost"
    )
