"""Attributes that are replaced in a block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from ooodist.compat import attributes
from tests.compat.contract import Contract


class Base:
    size = 1

    def name(self) -> str:
        return "base"


class Derived(Base):
    own = 2


def test_all_is_as_before() -> None:
    one: Any = Derived()
    one.color = "red"
    with attributes.replaced(one, color="blue", name=lambda: "ours", size=7):
        assert (one.color, one.name(), one.size) == ("blue", "ours", 7)
        with attributes.replaced(one, size=8):
            assert one.size == 8
        assert one.size == 7
    assert vars(one) == {"color": "red"}
    assert (one.name(), one.size) == ("base", 1)


def test_also_after_an_error() -> None:
    one = Derived()
    with pytest.raises(ValueError, match="inside"), attributes.replaced(one, size=7):
        raise ValueError("inside")
    assert vars(one) == {}


def test_those_of_classes_and_modules() -> None:
    with attributes.replaced(Derived, own=3, size=4), attributes.replaced(math, pi=3):
        assert (Derived.own, Derived.size, Base.size, math.pi) == (3, 4, 1, 3)
    assert (Derived.own, Derived.size) == (2, 1)
    assert "size" not in vars(Derived)
    assert round(math.pi, 2) == 3.14


def _not_tracked() -> None:
    layer = keras.layers.Dense(1)
    layer.build((None, 1))
    with attributes.replaced(layer, call=lambda _: 5, extra=keras.Variable([0.0])):
        assert layer.call(None) == 5
        assert len(layer.variables) == 2
    assert not hasattr(layer, "extra")


def _reduction() -> None:
    seen: list[tuple[Any, ...]] = []

    def replacement(plain: Callable[..., Any]) -> Callable[..., Any]:
        def reduce(
            values: Any,
            sample_weight: Any = None,
            mask: Any = None,
            reduction: str = "sum_over_batch_size",
            dtype: Any = None,
        ) -> Any:
            seen.append((sample_weight, mask is not None, reduction))
            return 3 * plain(values, sample_weight, mask, reduction, dtype)

        return reduce

    truth, found = np.zeros((4, 2), np.float32), np.ones((4, 2), np.float32)
    loss = keras.losses.MeanSquaredError()
    with attributes.replaced_reduction(replacement):
        assert float(loss(truth, found)) == 3.0
        model = keras.Sequential(
            [keras.Input((2, 1)), keras.layers.Masking(), keras.layers.Dense(1, use_bias=False)]
        )
        model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
        model.train_on_batch(np.ones((4, 2, 1), np.float32), np.ones((4, 2, 1), np.float32))
    assert float(loss(truth, found)) == 1.0
    assert seen[0] == (None, False, "sum_over_batch_size")
    assert seen[-1][1:] == (True, "sum")


CONTRACTS = [
    Contract("Layer.__setattr__", "keras", attributes.replaced, _not_tracked),
    Contract(
        "losses.loss.reduce_weighted_values", "keras", attributes.replaced_reduction, _reduction
    ),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_keras_keeps(contract: Contract) -> None:
    contract.hold()
