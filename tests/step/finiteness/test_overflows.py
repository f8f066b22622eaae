"""A float16 model of which every step overflows does not train in silence."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest

import ooodist

pytestmark = pytest.mark.usefixtures("local_engine")


@pytest.mark.parametrize(("scale", "warnings"), [(2.0**14, 0), (2.0**60, 1)])
def test_ten_steps_that_were_left_out_are_said(
    scale: float, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense(1, dtype="mixed_float16")
    model = keras.Sequential([keras.Input((4,)), dense])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), scale)
    model.compile(optimizer, "mse", jit_compile=False)
    ooodist.distribute(model, steps_per_execution=3)
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    with caplog.at_level(logging.WARNING, "ooodist"):
        model.fit(x, x[:, :1], batch_size=2, shuffle=False, verbose=0)
    found = [message for message in caplog.messages if "have all overflowed" in message]
    assert len(found) == warnings
    if warnings:
        assert int(optimizer.iterations) == 0
        assert "the last 12 steps" in found[0]
        assert f"initial_scale={scale / 2**13:g})" in found[0]
