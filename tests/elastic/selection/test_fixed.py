"""Fixed selections: what each of them trains, by its name."""

from __future__ import annotations

from functools import cache
from typing import Any

import keras
import numpy as np
import pytest

import ooodist
from ooodist.data_parallel.data_parallel_strategy import DataParallel
from ooodist.elastic.controller import Controller
from ooodist.elastic.cost_model import OneWorker
from ooodist.elastic.importance import Probe
from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.elastic.selection.fixed import FIXED, fixed_weights
from ooodist.elastic.selection.items import Selectable
from ooodist.elastic.timing import selectable_of
from ooodist.engines.local import LocalEngine
from ooodist.settings.elastic import ElasticConfig
from tests.profiler.models import compiled, layers, measure_compute


@cache
def sample() -> tuple[keras.Model, Any, Selectable]:
    """A model with layers of all these kinds, a batch, and its items."""
    keras.utils.set_random_seed(4)
    tokens = keras.Input((12,), dtype="int32")
    x = layers.Embedding(9, 8, name="embedding")(tokens)
    x = layers.Conv1D(8, 3, name="conv")(x)
    x = layers.ReLU()(layers.BatchNormalization(name="batch_norm")(x))
    x = layers.LayerNormalization(name="layer_norm")(layers.Conv1D(8, 3, name="other")(x))
    x = layers.Dense(8, activation="relu", name="dense")(layers.GlobalAveragePooling1D()(x))
    model = compiled(keras.Model(tokens, layers.Dense(5, name="head")(x)), "adam")
    numbers = np.random.default_rng(0)
    batch = numbers.integers(0, 9, (16, 12)).astype(np.int32), numbers.integers(0, 5, 16)
    return model, batch, selectable_of(measure_compute(model, batch, steps=3))


HEAD = {"head/kernel", "head/bias"}
NORMS = {f"{norm}_norm/{weight}" for norm in ("batch", "layer") for weight in ("gamma", "beta")}
BIASES = {"conv/bias", "other/bias", "dense/bias"}
KERNELS = {"embedding/embeddings", "conv/kernel", "other/kernel", "dense/kernel"}
TRAINED = {
    "full": HEAD | NORMS | BIASES | KERNELS,
    "head": HEAD,
    "bias_norm_head": HEAD | NORMS | BIASES,
}


@pytest.mark.parametrize("name", FIXED)
def test_what_is_trained_always(name: str) -> None:
    model, _, choice = sample()
    assert fixed_weights(name, model, choice) == TRAINED[name]


def test_a_frozen_norm_is_not_trained() -> None:
    model, _, choice = sample()
    norm = model.get_layer("batch_norm")
    norm.trainable = False
    left = choice.weights(range(len(choice.items))) - {"batch_norm/gamma", "batch_norm/beta"}
    kept = Selectable(
        tuple(item for item in choice.items if set(item.weights) <= left), choice.path_seconds
    )
    try:
        found = fixed_weights("bias_norm_head", model, kept)
    finally:
        norm.trainable = True
    assert found == (HEAD | NORMS | BIASES) & left


def test_biases_and_norms_within_layers_of_layers_are_found() -> None:
    inner = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, name="deep"), layers.LayerNormalization(name="norm")]
    )
    numbers = keras.Input((4,))
    model = compiled(keras.Model(numbers, layers.Dense(5, name="out")(inner(numbers))))
    given = np.zeros((8, 4), np.float32), np.zeros(8, np.int32)
    choice = selectable_of(measure_compute(model, given, steps=3))
    found = fixed_weights("bias_norm_head", model, choice)
    assert {name.rpartition("/")[2] for name in found} == {"kernel", "bias", "gamma", "beta"}
    assert sum(name.endswith("kernel") for name in found) == 1


def selecting(name: str, rho: float = 0.99) -> Controller:
    """After its first selection."""
    model, batch, choice = sample()
    optimizer_state = OptimizerState(model)
    config = ElasticConfig(rho=rho, select=name)
    cost_model, probe = OneWorker(choice), Probe(model, optimizer_state)
    found = Controller(config, model, LocalEngine(), cost_model, optimizer_state, probe)
    found.renew([batch])
    return found


@pytest.mark.parametrize("name", ["head", "bias_norm_head"])
def test_what_knows_no_rho_is_selected_once_and_whatever_it_costs(name: str) -> None:
    controller = selecting(name, rho=0.01)
    assert controller.mask is not None
    assert controller.mask.weights == TRAINED[name]
    assert not controller.is_due
    controller.count(10_000)
    controller.end_epoch(9.9)
    assert not controller.is_due


def test_full_is_training_without_a_selection() -> None:
    ooodist.init("local")
    model = ooodist.distribute(keras.models.clone_model(sample()[0]), elastic={"select": "full"})
    assert isinstance(model.ooodist.strategy, DataParallel)
