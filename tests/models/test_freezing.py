"""Layers that a job file freezes."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.models import build
from ooodist.models.freezing import freeze, layers_with_weights
from ooodist.models.mlp import MlpConfig

from .samples import SMALL, images, random_batch

NAMED = {
    "*": {"dense_0", "dense_1", "predictions"},
    "dense_*": {"dense_0", "dense_1"},
    "dense_1": {"dense_1"},
    "?ense_0": {"dense_0"},
    "[!d]*": {"predictions"},
}


def frozen_in(model: keras.Model) -> set[str]:
    return {name for name, layer in layers_with_weights(model) if not layer.trainable}


PATTERNS = st.lists(st.tuples(st.sampled_from(sorted(NAMED)), st.booleans()), min_size=1)


@given(PATTERNS)
def test_the_last_pattern_that_names_a_layer_decides(patterns: list[tuple[str, bool]]) -> None:
    model = build(MlpConfig(layers=(2, 2)), images(2, 1))
    last = {name: is_out for pattern, is_out in patterns for name in NAMED[pattern]}
    expected = {name for name, is_out in last.items() if not is_out}
    texts = ["!" * is_out + pattern for pattern, is_out in patterns]
    if expected == NAMED["*"]:
        with pytest.raises(UserError, match="leaves nothing of model mlp to train"):
            freeze(model, texts)
    else:
        freeze(model, texts)
        assert frozen_in(model) == expected
        trained = {variable.path.partition("/")[0] for variable in model.trainable_variables}
        assert trained == NAMED["*"] - expected


def nested() -> keras.Model:
    """An inner model, a layer that has layers, and two outer ones."""
    layers = keras.layers
    inner = keras.Sequential(
        [keras.Input((3, 4)), layers.Dense(4, name="one"), layers.Dense(4, name="two")],
        name="inner",
    )
    x = keras.Input((3, 4))
    y = inner(x)
    y = layers.MultiHeadAttention(1, 2, name="attention")(y, y)
    return keras.Model(x, layers.Dense(4, name="head")(y))


OF_ATTENTION = {"query", "key", "value", "attention_output"}


@pytest.mark.parametrize(
    ("patterns", "trained"),
    [
        (["inner"], {"head", *OF_ATTENTION}),
        (["inner/two"], {"one", "head", *OF_ATTENTION}),
        (["*", "!inner/two"], {"two"}),
        (["*", "!inner", "inner/one"], {"two"}),
        (["*", "!attention"], OF_ATTENTION),
        (["inner", "*attention", "!*/query", "head"], {"query"}),
    ],
)
def test_inner_layers(patterns: list[str], trained: set[str]) -> None:
    model = nested()
    freeze(model, patterns)
    assert {variable.path.split("/")[-2] for variable in model.trainable_variables} == trained


def test_a_name_that_no_layer_has() -> None:
    with pytest.raises(UserError) as error:
        build(MlpConfig(layers=(8, 6), freeze=("dense_0", "prediction")), images())
    assert str(error.value) == (
        "model.freeze[1] is 'prediction', which names no layer with weights of model mlp; the "
        "nearest names are predictions, dense_1, dense_0"
    )
    with pytest.raises(UserError, match=r"model\.freeze\[0\] is 'flatten', which names no layer"):
        build(MlpConfig(layers=(8, 6), freeze=("flatten",)), images())


def test_a_frozen_batch_norm_is_in_inference_mode() -> None:
    """Keras does that; the same layer would use and change its averages otherwise."""
    _, data = SMALL["resnet20_batch"]
    model = build(SMALL["resnet20_batch"][0], data)
    x, _ = random_batch(data)
    before = [weight.numpy() for weight in model.weights]
    freeze(model, ["*_norm"])
    np.testing.assert_array_equal(model(x, training=True), model(x, training=False))
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    assert not [v.path for v in model.trainable_variables if "_norm" in v.path]
