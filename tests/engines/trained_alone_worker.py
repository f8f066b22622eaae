"""Trains one model with the other workers and one alone: see test_trained_alone.py."""

# ruff: noqa: E402 - ooodist.init comes before Keras is imported
from __future__ import annotations

import ooodist

ooodist.init()

import keras
import numpy as np

x = np.ones((8, 2), "float32")


def build(name: str) -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name=name)
    model.compile("sgd", "mse")
    return model


together = ooodist.distribute(build("together"))
together.fit(x, x[:, :1], batch_size=2, verbose=0)
forgotten, unused = build("forgotten"), build("unused")
forgotten.fit(x, x[:, :1], batch_size=2, verbose=0)
unused.predict(x, verbose=0)
