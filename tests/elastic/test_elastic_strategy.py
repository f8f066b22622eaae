"""What elastic training says of a training."""

from __future__ import annotations

from pathlib import Path

import pytest

import ooodist
from ooodist.elastic.cost_model import OneWorker
from ooodist.elastic.elastic_strategy import warn_if_short
from ooodist.elastic.selection.items import Item, Selectable
from ooodist.settings.sections import PlanningConfig
from tests.profiler.models import batch, dense_chain


def test_a_training_too_short_to_be_worth_measuring_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    item = Item("dense", ("kernel",), 1.0, frozenset({"a"}))
    cost_model = OneWorker(Selectable((item,), {"a": 2.0}, fixed_seconds=1.0))  # 4 s in full
    warn_if_short(cost_model, 0.5, steps=10, measured_for=19.9)
    assert not caplog.text
    warn_if_short(cost_model, 0.5, steps=10, measured_for=20.1)
    assert "saves at most 20.0 s of the 40.0 s that these 10 steps take in full" in caplog.text


def test_selections_are_timed_once_for_all_trainings_with_a_kept_profile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ooodist.init("local")
    found = []
    for _ in range(2):
        model = ooodist.distribute(
            dense_chain(), elastic={"rho": 0.99}, planning=PlanningConfig(profiles=str(tmp_path))
        )
        with caplog.at_level("INFO", logger="ooodist"):
            model.ooodist.strategy.plan(batch())
        found.append(model.ooodist.strategy.controller.cost_model.choice)
    assert found[0] == found[1]
    assert caplog.text.count("elastic: all: measured") == 1
