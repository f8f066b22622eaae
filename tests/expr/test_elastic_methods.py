"""expr/elastic: selections to compare with get another importance, or another solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ooodist.elastic.controller import Controller
from ooodist.elastic.cost_model import OneWorker
from ooodist.elastic.importance import Probe
from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.elastic.selection.items import Selectable
from ooodist.engines.local import LocalEngine
from ooodist.settings.elastic import ElasticConfig
from tests.elastic.selection.test_fixed import TRAINED, sample
from tests.expr.scripts import load

methods = load("elastic", "methods")
select_published, weight_magnitudes = methods.select_published, methods.weight_magnitudes


def test_the_magnitude_of_a_weight_is_the_sum_of_its_absolute_values() -> None:
    model, _, _ = sample()
    found = weight_magnitudes(model)
    assert set(found) == TRAINED["full"]
    kernel = model.get_layer("dense").kernel.numpy()
    assert found["dense/kernel"] == pytest.approx(np.abs(kernel).sum(), rel=1e-6)
    assert found["dense/bias"] == 0


def selecting(name: str) -> Controller:
    """Returns a controller after its first selection."""
    model, batch, choice = sample()
    optimizer_state = OptimizerState(model)
    config = ElasticConfig(rho=0.99)
    cost_model, probe = OneWorker(choice), Probe(model, optimizer_state)
    found = Controller(config, model, LocalEngine(), cost_model, optimizer_state, probe)
    methods.CHANGES[name](found)
    found.renew([batch])
    return found


def by_weights(choice: Selectable, values: dict[str, float]) -> np.ndarray:
    """The share of each item in the largest."""
    sums = np.array([sum(values[name] for name in item.weights) for item in choice.items])
    return sums / sums.max()


@pytest.mark.parametrize("name", ["weight_magnitude", "gradient_magnitude"])
def test_magnitudes_take_the_place_of_importance(name: str) -> None:
    model, batch, choice = sample()
    if name == "weight_magnitude":
        values = weight_magnitudes(model)
    else:
        values = Probe(model, OptimizerState(model))([batch]).gradient
    expected = by_weights(choice, values)
    importance = selecting(name).renewals[0].importance
    np.testing.assert_allclose(importance, expected, rtol=1e-4, atol=1e-6)


def test_the_published_solver_gets_the_measured_importance(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, choice = sample()
    given: list[Any] = []

    def solver(*arguments: Any) -> frozenset[int]:
        given.append(arguments)
        return select_published(*arguments)

    monkeypatch.setattr(methods, "select_published", solver)
    found = selecting("published")
    ((_, importance, budget, forced),) = given
    assert tuple(importance) == found.renewals[0].importance
    assert budget == pytest.approx(0.99 * choice.full_seconds)
    assert forced == frozenset(choice.head)
    assert found.mask is not None
    assert found.mask.weights == choice.weights(
        select_published(choice, importance, budget, forced)
    )
