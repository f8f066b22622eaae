"""What elastic training says of a training."""

from __future__ import annotations

import pytest

from ooodist.elastic.cost_model import OneWorker
from ooodist.elastic.elastic_strategy import warn_if_short
from ooodist.elastic.selection.items import Item, Selectable


def test_a_training_too_short_to_be_worth_measuring_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    item = Item("dense", ("kernel",), 1.0, frozenset({"a"}))
    cost_model = OneWorker(Selectable((item,), {"a": 2.0}, fixed_seconds=1.0))  # 4 s in full
    warn_if_short(cost_model, 0.5, steps=10, measured_for=19.9)
    assert not caplog.text
    warn_if_short(cost_model, 0.5, steps=10, measured_for=20.1)
    assert "saves at most 20.0 s of the 40.0 s that these 10 steps take in full" in caplog.text
