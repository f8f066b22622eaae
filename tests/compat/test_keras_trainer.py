"""Contracts: Keras's fit, evaluate and predict can be reached however they are called."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from ooodist.compat import keras_trainer
from tests.compat.contract import Contract

NOTHING_TO_DO = (ValueError, TypeError, AttributeError, KeyError)  # Keras's own, not compiled


class _Overrides(keras.Model):
    def fit(self, **options: Any) -> Any:
        return super().fit(**options)


def _redirected(name: str) -> None:
    model, other = _Overrides(), _Overrides()
    kept = getattr(model, name)  # before it is redirected

    def run(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    with keras_trainer.redirected(model, name, run):
        assert getattr(model, name)(x=1) == ((), {"x": 1})
        assert kept(x=2) == ((), {"x": 2})
        assert getattr(keras.Model, name)(model, 3) == ((3,), {})
        with pytest.raises(NOTHING_TO_DO):
            getattr(other, name)(x=None)
        with pytest.raises(NOTHING_TO_DO):
            keras_trainer.plain_method(model, name)(x=None)
    with pytest.raises(NOTHING_TO_DO):
        getattr(model, name)(x=None)


CONTRACTS = [
    Contract(
        f"the closure of Model.{name}",
        "keras",
        keras_trainer.redirected,
        lambda name=name: _redirected(name),
    )
    for name in ("fit", "evaluate", "predict")
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_contract(contract: Contract) -> None:
    contract.hold()
