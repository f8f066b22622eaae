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


def _plain(name: str) -> None:
    with pytest.raises(NOTHING_TO_DO):
        keras_trainer.plain_method(keras.Model(), name)(x=None)


def _redirectable(name: str) -> None:
    wrapper = getattr(keras.Model, name)
    keras_trainer._make_redirectable(name)
    assert getattr(keras.Model, name) is wrapper
    runs = [cell.cell_contents for cell in wrapper.__closure__]
    assert [run.__wrapped__ for run in runs if callable(run)] == [wrapper.__wrapped__]


CONTRACTS = [
    Contract(
        f"{what} of Model.{name}", "keras", function, lambda check=check, name=name: check(name)
    )
    for what, function, check in (
        ("the closure", keras_trainer.redirected, _redirected),
        ("__wrapped__", keras_trainer.plain_method, _plain),
        ("one function in the closure", keras_trainer._make_redirectable, _redirectable),
    )
    for name in ("fit", "evaluate", "predict")
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_contract(contract: Contract) -> None:
    contract.hold()
