"""Shares of a full step: what was missed is corrected, and what was not stays."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ooodist.elastic.pace import LEAST_SAVING, MOST_OFF, MOST_SAVING, Pace

FULL = 2.0
shares = st.floats(0.05, 0.95)


@given(shares, st.floats(LEAST_SAVING, MOST_SAVING))
def test_a_budget_is_what_its_share_was_asked_for(rho: float, saving: float) -> None:
    pace = Pace(FULL, saving=saving)
    assert pace.share(pace.budget(rho)) == pytest.approx(rho)


@given(shares, shares)
def test_after_a_correction_what_was_measured_is_what_is_expected(
    modeled: float, measured: float
) -> None:
    assume(LEAST_SAVING <= (1 - measured) / (1 - modeled) <= MOST_SAVING)
    pace = Pace(FULL)
    is_off = abs(measured / modeled - 1) > MOST_OFF
    assert pace.correct(measured, FULL * modeled) == is_off
    assert pace.corrections == is_off
    assert pace.share(FULL * modeled) == pytest.approx(measured if is_off else modeled)
    assert not pace.correct(measured, FULL * modeled)


def test_where_all_is_selected_nothing_is_corrected() -> None:
    assert not Pace(FULL).correct(0.5, FULL)


def test_a_slower_machine_is_slower_in_full_too() -> None:
    pace = Pace(FULL)
    assert pace.measured(1.0) == 0.5
    assert pace.measured_now(1.0) is None  # the machine may be slower than it was
    pace.full_now = 4.0
    assert pace.measured(2.0) == pace.measured_now(2.0) == 0.5
    assert pace.measured(None) is None
