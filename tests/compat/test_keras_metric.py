"""Contract: what Keras keeps in a metric."""

from __future__ import annotations

import keras
import pytest

from ooodist.compat import keras_metric
from tests.compat.contract import Contract


def _variables() -> None:
    metric = keras.metrics.Mean()
    metric.update_state([1.0, 3.0])
    total, count = (keras.Variable(v.numpy() + 2, trainable=False) for v in metric.variables)
    other = object.__new__(type(metric))
    vars(other).update(vars(metric) | {"total": total, "count": count})
    keras_metric.set_variables(other, [total, count])
    assert [id(variable) for variable in other.variables] == [id(total), id(count)]
    assert float(other.result()) == 1.5
    assert float(metric.result()) == 2.0


CONTRACTS = [Contract("Metric._variables", "keras", keras_metric.set_variables, _variables)]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_keras_keeps(contract: Contract) -> None:
    contract.hold()
