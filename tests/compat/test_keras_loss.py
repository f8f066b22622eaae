"""Contract: how Keras reduces a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from ooodist.compat import keras_loss
from tests.compat.contract import Contract


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
    with keras_loss.replaced_reduction(replacement):
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
    Contract(
        "losses.loss.reduce_weighted_values", "keras", keras_loss.replaced_reduction, _reduction
    ),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_keras_keeps(contract: Contract) -> None:
    contract.hold()
