"""Ranks that are given the same data are told so, and those that have their parts are not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist.engines.base import Engine
from tests.ranks_in_threads import on_ranks

TOLD = "fit: ranks 0 and 1 begin with the same batch"
NOTED = "each must yield its own part"
numbers = np.random.default_rng(0)
X = numbers.normal(size=(32, 8)).astype(np.float32)
Y = X[:, :1] + X[:, 1:2]


def batches(x: np.ndarray = X, y: np.ndarray = Y) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4, drop_remainder=True)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Any:
        return X[4 * number :][:4], Y[4 * number :][:4]


# Made by each rank; how often it is told, and on both ranks noted beforehand.
CASES: dict[str, tuple[Callable[[int], Any], int, int]] = {
    "the same": (lambda rank: batches(), 1, 2),
    "a PyDataset": (lambda rank: Batches(), 1, 2),
    "ooodist.shard": (lambda rank: ooodist.shard(batches()).prefetch(1), 0, 0),
    "shard": (lambda rank: batches().shard(2, rank), 0, 0),
    "a benchmark's constants": (lambda rank: batches(np.ones_like(X), np.ones_like(Y)), 0, 2),
    "arrays": (lambda rank: X, 0, 0),
}


def test_the_same_data_on_all_ranks_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ooodist")

    def work(engine: Engine) -> dict[str, tuple[int, int]]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        model = ooodist.distribute(model)
        told = {}
        for name, (make, *_) in CASES.items():
            before = [caplog.text.count(text) for text in (TOLD, NOTED)]
            data = make(engine.rank)
            given = {"y": Y, "batch_size": 4} if data is X else {}
            model.fit(data, **given, epochs=2, shuffle=False, verbose=0)
            after = [caplog.text.count(text) for text in (TOLD, NOTED)]
            told[name] = after[0] - before[0], after[1] - before[1]
        return told

    told, _ = on_ranks(monkeypatch, work)
    assert told == {name: tuple(expected) for name, (_, *expected) in CASES.items()}
