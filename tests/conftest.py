"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A machine that stands still for half a second is no reason for a test to fail.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
