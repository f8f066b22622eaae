"""How many examples a property is tried on: 30, and 1,000 with ``pytest --thorough``."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

USUAL, THOROUGH = 30, 1000
VARIABLE = "OOODIST_TESTS_THOROUGH"  # read when modules of tests are imported


def load_profile(*, thorough: bool) -> None:
    """Makes one of the two numbers the default."""
    if thorough:
        os.environ[VARIABLE] = "1"
    settings.register_profile(
        "ooodist",
        max_examples=THOROUGH if thorough else USUAL,
        # A machine that stands still for half a second is no reason for a test to fail, nor are
        # draws that are left out, now and then too many of the first ones.
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    settings.load_profile("ooodist")


def few(examples: int, **others: Any) -> settings:
    """Settings of a property whose examples take long: it has fewer of them."""
    times = THOROUGH // USUAL if os.environ.get(VARIABLE) else 1
    return settings(max_examples=examples * times, **others)
