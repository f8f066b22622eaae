"""What tests of elastic training in one process share."""

from __future__ import annotations

import pytest

import ooodist
from ooodist.elastic import timing
from ooodist.profiler.folder import Calibration


@pytest.fixture
def equal_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    set_equal_costs(monkeypatch)


def set_equal_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, and costs that are the same in each run: calibrated, they would never be."""
    ooodist.init("local")
    monkeypatch.setattr(timing, "calibrated", lambda *_, **__: (Calibration(1.0, 1.0), ()))


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("profiles"))
