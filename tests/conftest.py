"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A machine that stands still for half a second is no reason for a test to fail.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture
def local_engine() -> Iterator[None]:
    """The engine of one process is in use."""
    import keras

    import ooodist

    ooodist.init("local")
    yield
    keras.backend.clear_session()
