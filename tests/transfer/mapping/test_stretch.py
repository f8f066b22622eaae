"""Norms over units are exact for any larger width, where what they read is linear."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st
from keras import layers

from ooodist.transfer.graph.keras_graph import graph_of
from tests.thorough import few
from tests.transfer.models import (
    SAME,
    Family,
    bert,
    chain,
    check_report,
    difference,
    gpt,
    images,
    randomize,
    sequences,
    step,
    tokens,
    values_of,
    vectors,
    vit,
    warm,
)


def normed(width: int, *norms: Any, first: str | None = None) -> keras.Model:
    """Vectors to classes by way of units that norms read."""
    return chain(
        layers.Dense(width, first, name="first"),
        *norms,
        layers.Dense(4, "relu", name="second"),
        layers.Dense(3, name="head"),
        shape=(6,),
    )


NORMS: dict[str, Any] = {
    "layer": lambda: layers.LayerNormalization(name="norm"),
    "layer, large epsilon": lambda: layers.LayerNormalization(epsilon=0.5, name="norm"),
    "rms": lambda: layers.RMSNormalization(name="norm"),
}


@few(12, phases=(Phase.explicit, Phase.generate))
@given(st.integers(1, 9), st.integers(1, 14), st.sampled_from([*NORMS]), st.booleans())
def test_any_larger_width_is_exact(width: int, more: int, norm: str, has_relu: bool) -> None:
    """However small the variance is: the epsilon stays where it was."""
    relu = [layers.ReLU()] if has_relu else []
    parent = randomize(normed(width, NORMS[norm](), *relu), width)
    parent.get_layer("first").kernel.assign(0.1 * parent.get_layer("first").kernel)
    child = normed(width + more, NORMS[norm](), *relu)
    made = warm(child, parent)
    check_report(made, child)
    assert made.departures == ()
    assert made.carried == 1
    assert difference(child, parent, vectors()) < SAME


UNEQUAL: dict[str, Family] = {
    "vit": (vit, lambda: vit(width=12), images()),
    "vit, deeper": (vit, lambda: vit(width=20, heads=4, layers=2), images()),
    "gpt": (gpt, lambda: gpt(width=10), tokens()),
    "gpt, deeper": (gpt, lambda: gpt(width=18, layers=2), tokens()),
    "gpt, untied": (
        lambda: gpt(tie_embeddings=False),
        lambda: gpt(tie_embeddings=False, width=12),
        tokens(),
    ),
    "attention without norms before": (
        lambda: attending(6),
        lambda: attending(10),
        sequences(),
    ),
}


def attending(width: int) -> keras.Model:
    """What is added up is read by a norm, and by the head as it is."""
    inputs = keras.Input((5, 6))
    x = layers.Conv1D(width, 3, padding="same")(inputs)
    y = layers.RMSNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 3)(y, y)
    y = layers.Dense(2 * width, "gelu")(layers.RMSNormalization()(x))
    x = layers.Add()([x, layers.Dense(width)(y)])
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


@pytest.mark.parametrize("name", UNEQUAL)
def test_streams_that_norms_read_are_exact_and_learn(name: str) -> None:
    build, build_wider, data = UNEQUAL[name]
    parent, child = randomize(build()), build_wider()
    made = warm(child, parent)
    check_report(made, child)
    assert made.departures == ()
    assert difference(child, parent, data) < SAME
    before = values_of(child)
    step(child, data, rate=0.02, steps=3)
    after = values_of(child)
    assert all(np.isfinite(value).all() for value in after.values())
    for each in made.names("widened"):
        if each.endswith("key/bias"):  # which adds the same to all that a softmax compares
            continue
        assert np.any(after[each] != before[each]), each


def test_new_units_come_to_differ_from_the_mean() -> None:
    """In three steps they are heard, and move apart."""
    parent, child = (normed(width, NORMS["layer"](), layers.ReLU()) for width in (4, 7))
    warm(child, randomize(parent))
    new = slice(4, 7)
    kernel = values_of(child)["first/kernel"]
    np.testing.assert_allclose(kernel[:, 4], kernel[:, 6])
    assert not values_of(child)["second/kernel"][new].any()
    step(child, vectors(), rate=0.05, steps=4)
    assert np.abs(values_of(child)["second/kernel"][new]).min() > 0
    assert np.abs(values_of(child)["first/kernel"][:, new] - kernel[:, new]).max() > 1e-6


@pytest.mark.parametrize(
    ("build", "sizes", "data"),
    [
        (lambda width: normed(width, NORMS["layer"](), first="relu"), (4, 6), vectors()),
        (lambda width: normed(width, layers.LayerNormalization(center=False)), (4, 6), vectors()),
        (lambda width: normed(width, layers.LayerNormalization(scale=False)), (4, 6), vectors()),
        (
            lambda width: chain(
                layers.Conv2D(width, 3),
                layers.GroupNormalization(2),
                layers.Conv2D(3, 1),
                shape=(6, 6, 3),
            ),
            (4, 6),
            images(pixels=6),
        ),
        (lambda width: bert(width=width), (8, 12), tokens()),
    ],
    ids=["behind a relu", "no offset", "no scale", "groups", "norms behind sums"],
)
def test_what_is_not_exact_is_said(build: Any, sizes: tuple[int, int], data: Any) -> None:
    parent, child = randomize(build(sizes[0])), build(sizes[1])
    made = warm(child, parent)
    assert difference(child, parent, data) > SAME
    assert "takes the mean of units of which some are there more often" in made.departures[0]
    twice = build(2 * sizes[0])
    assert warm(twice, parent).departures == ()
    assert difference(twice, parent, data) < SAME


def test_without_the_norm_nothing_is_scaled() -> None:
    parent, child = normed(4), normed(6)
    assert not any(space.averaged for space in graph_of(child).spaces)
    made = warm(child, randomize(parent))
    values = values_of(parent)["first/kernel"]
    np.testing.assert_array_equal(made.values["first/kernel"][:, 4:], values[:, :2])


def pairs_of(width: int, activation: str | None, normalize: bool) -> keras.Model:
    """How well two vectors fit."""
    inputs = [keras.Input((6,)) for _ in range(2)]
    towers = [layers.Dense(width, activation)(layers.Dense(width + 1, "relu")(x)) for x in inputs]
    return keras.Model(inputs, layers.Dot(-1, normalize=normalize)(towers))


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("width", [5, 8, 11])
def test_a_dot_over_more_units_is_exact(
    width: int, normalize: bool, activation: str | None
) -> None:
    parent, child = (pairs_of(size, activation, normalize) for size in (4, width))
    made = warm(child, randomize(parent))
    assert made.departures == ()
    assert made.carried == 1
    assert difference(child, parent, [vectors(), vectors()[::-1]]) < SAME


def test_a_dot_behind_a_tanh_is_not() -> None:
    """What comes out of it cannot be scaled."""
    parent, child = (pairs_of(size, "tanh", False) for size in (4, 6))
    made = warm(child, randomize(parent))
    assert "(Dot) adds up units that are there again" in made.departures[0]
    assert difference(child, parent, [vectors(), vectors()[::-1]]) > SAME
