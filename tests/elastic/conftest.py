"""What tests of elastic training in one process share."""

from __future__ import annotations

import pytest

import ooodist
from ooodist.elastic import timing


@pytest.fixture
def equal_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    set_equal_costs(monkeypatch)


def set_equal_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, and costs that are the same in each run: calibrated, they would never be."""
    ooodist.init("local")
    monkeypatch.setattr(timing, "calibrated", lambda _model, _batch, costs, *_, **__: (costs, ()))


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("profiles"))
