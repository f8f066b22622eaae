"""What tests of training in one process share."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest

import ooodist


@pytest.fixture
def local_engine() -> Iterator[None]:
    """The engine of one process is in use."""
    ooodist.init("local")
    yield
    keras.backend.clear_session()
