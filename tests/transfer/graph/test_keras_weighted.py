"""Layers whose weights need care: convolutions in groups, norms, attention, tied tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from ooodist.models.layers import ClassToken, PositionEmbedding, TokenEmbedding
from tests.transfer.models import (
    CLASSES,
    SAME,
    VOCABULARY,
    chain,
    difference,
    images,
    in_order,
    randomize,
    sequences,
    tokens,
    values_of,
    vectors,
    warm,
    weights_of,
)


def pixels_to_classes(*parts: Any) -> keras.Model:
    """An image model that ends in a pooling and a Dense."""
    pool = layers.GlobalAveragePooling2D()
    return chain(*parts, pool, layers.Dense(CLASSES), shape=(8, 8, 3))


# Convolutions in groups


def in_groups(width: int, groups: int, made: int | None = None) -> keras.Model:
    return pixels_to_classes(
        layers.Conv2D(width, 1),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Conv2D(made or width, 3, groups=groups, padding="same"),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Conv2D(7, 1),
    )


@pytest.mark.parametrize(
    ("width", "groups"),
    [(8, 4), (12, 4), (20, 4), (16, 8), (24, 12)],
    ids=["same", "3 a group", "5 a group", "8 groups", "12 groups"],
)
def test_wider_or_more_groups_compute_the_same(width: int, groups: int) -> None:
    parent = randomize(in_groups(8, 4))
    child = in_groups(width, groups)
    made = warm(child, parent, in_order)
    assert made.carried == 1
    assert difference(child, parent, images(pixels=8)) < SAME


def test_a_group_may_make_more_than_it_reads() -> None:
    parent = randomize(in_groups(8, 4, 12))
    child = in_groups(12, 4, 20)
    warm(child, parent, in_order)
    assert difference(child, parent, images(pixels=8)) < SAME


def test_a_convolution_in_groups_takes_nothing_from_one_without() -> None:
    """Depthwise from plain would be nonsense; the same shape is a coincidence."""
    parent = randomize(in_groups(8, 1))
    for groups in (2, 8):
        child = in_groups(8, groups)
        before = values_of(child)
        made = warm(child, parent, in_order)
        (report,) = (r for r in made.report if r.action == "fresh")
        np.testing.assert_array_equal(made.values[report.name], before[report.name])


# Norms over units: exact for as many copies of each


def with_norm(width: int, norm: Callable[[], Any]) -> keras.Model:
    return pixels_to_classes(
        layers.Conv2D(width, 3), norm(), layers.ReLU(), layers.Conv2D(width, 3), norm()
    )


NORMS: dict[str, Callable[[], Any]] = {
    "layer": layers.LayerNormalization,
    "layer without scale": lambda: layers.LayerNormalization(scale=False),
    "root mean square": layers.RMSNormalization,
    "group": lambda: layers.GroupNormalization(2),
    "instance": lambda: layers.GroupNormalization(-1),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("times", [2, 3])
def test_a_norm_over_units_times_wider_computes_the_same(name: str, times: int) -> None:
    parent = randomize(with_norm(4, NORMS[name]))
    child = with_norm(4 * times, NORMS[name])
    assert warm(child, parent, in_order).carried == 1
    assert difference(child, parent, images(pixels=8)) < SAME


def test_each_unit_alone_is_normalized_at_any_width() -> None:
    parent = randomize(with_norm(4, NORMS["instance"]))
    child = with_norm(7, NORMS["instance"])
    warm(child, parent, in_order)
    assert difference(child, parent, images(pixels=8)) < SAME


def test_a_layer_norm_of_other_widths_computes_the_same() -> None:
    """No unit weighs more in the mean than another: new ones are the mean."""
    parent = randomize(with_norm(16, NORMS["layer"]))
    child = with_norm(20, NORMS["layer"])
    assert warm(child, parent, in_order).carried == 1
    assert difference(child, parent, images(pixels=8)) < SAME


# Attention


def attending(
    width: int, heads: int, key: int, value: int | None = None, bias: bool = True
) -> keras.Model:
    """Of a sequence to itself, and then to another one."""
    one, two = keras.Input((5, 6)), keras.Input((4, 6))
    x, y = layers.Dense(width)(one), layers.Dense(width + 1)(two)
    x = layers.MultiHeadAttention(heads, key, value_dim=value, use_bias=bias)(x, x)
    mixed = layers.MultiHeadAttention(heads + 1, key, output_shape=width + 2)(x, value=y)
    mixed = layers.MultiHeadAttention(heads, key)(mixed, x, key=x)
    return keras.Model([one, two], layers.Dense(CLASSES)(mixed))


@pytest.mark.parametrize(
    "sizes",
    [(4, 2, 3), (4, 5, 3), (4, 2, 7), (4, 5, 7), (7, 2, 3), (9, 3, 8)],
    ids=["same", "heads", "keys", "both", "reads", "all"],
)
@pytest.mark.parametrize("bias", [True, False])
def test_attention_with_more_or_wider_heads_computes_the_same(
    sizes: tuple[int, int, int], bias: bool
) -> None:
    data = [sequences(), sequences(length=4)]
    parent = randomize(attending(4, 2, 3, bias=bias))
    child = attending(*sizes, bias=bias)
    assert warm(child, parent, in_order).carried == 1
    assert difference(child, parent, data) < SAME


def test_attention_with_wider_values_computes_the_same() -> None:
    parent, child = randomize(attending(4, 2, 3, 5)), attending(4, 3, 4, 8)
    warm(child, parent, in_order)
    assert difference(child, parent, [sequences(), sequences(length=4)]) < SAME


def test_attention_that_is_narrower_keeps_the_scores_of_the_keys_that_matter() -> None:
    """Keys that are zero are left out, and the root of the width that scores are divided by."""
    parent = randomize(attending(4, 2, 6))
    for name, variable in weights_of(parent).items():
        if name.rpartition("/")[0].endswith(("query", "key")):
            value = np.asarray(variable)
            variable.assign(value * np.array([1, 1, 1, 0, 0, 0]))
        elif name.rpartition("/")[0].endswith("value"):
            variable.assign(np.asarray(variable) * np.array([0, 1, 1, 0, 0, 1]))
    child = attending(4, 2, 3)
    warm(child, parent, in_order)
    assert difference(child, parent, [sequences(), sequences(length=4)]) < SAME


# Tables


def tied(width: int, table: Callable[[int], Any], norm: Callable[[], Any] | None) -> keras.Model:
    """A table that makes vectors of tokens, and scores tokens by vectors."""
    inputs = keras.Input((7,), dtype="int32")
    layer = table(width)
    x = layer(inputs)
    x = PositionEmbedding(0.1)(x)
    x = layers.Add()([x, layers.Dense(width)(layers.Dense(2 * width, activation="gelu")(x))])
    x = norm()(x) if norm is not None else x
    return keras.Model(inputs, layer(x, reverse=True))


TABLES: dict[str, Callable[[int], Any]] = {
    "ours": lambda width: TokenEmbedding(VOCABULARY, width),
    "ours with a bias": lambda width: TokenEmbedding(VOCABULARY, width, reverse_bias=True),
    "Keras": lambda width: layers.ReversibleEmbedding(VOCABULARY, width),
    "Keras untied": lambda width: layers.ReversibleEmbedding(VOCABULARY, width, tie_weights=False),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("norm", [layers.LayerNormalization, layers.RMSNormalization])
def test_a_table_that_is_used_in_reverse_computes_the_same(
    name: str, norm: Callable[[], Any]
) -> None:
    parent, child = (tied(width, TABLES[name], norm) for width in (4, 12))
    randomize(parent)
    assert warm(child, parent, in_order).carried == 1
    assert difference(child, parent, tokens()) < SAME


@pytest.mark.parametrize("name", TABLES)
def test_it_may_be_any_wider_behind_a_dense_or_a_batch_norm(name: str) -> None:
    """What comes right before the table is divided, as the table cannot be."""
    lasts: list[Callable[[int], Any]] = [
        lambda width: layers.BatchNormalization(),
        lambda width: layers.Dense(width),
    ]
    for last in lasts:
        parent = randomize(tied(4, TABLES[name], lambda: last(4)))  # noqa: B023 - called at once
        child = tied(7, TABLES[name], lambda: last(7))  # noqa: B023
        warm(child, parent, in_order)
        assert difference(child, parent, tokens()) < SAME


def test_behind_a_sum_a_tied_table_cannot_compute_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The sum is read by the table only through what is added; the log says so."""
    parent, child = (tied(width, TABLES["ours"], None) for width in (4, 8))
    randomize(parent)
    with caplog.at_level("WARNING", "ooodist"):
        warm(child, parent, in_order)
    assert "reads copied units with a tied table" in caplog.text
    assert difference(child, parent, tokens()) > SAME


def test_a_larger_vocabulary_keeps_the_tokens_that_were_there() -> None:
    parent, child = (
        chain(TokenEmbedding(size, 4, name="table"), shape=(7,), dtype="int32")
        for size in (VOCABULARY, VOCABULARY + 9)
    )
    own = values_of(child)["table/table"]
    made = warm(child, parent, in_order)
    np.testing.assert_array_equal(
        made.values["table/table"][:VOCABULARY], values_of(parent)["table/table"]
    )
    np.testing.assert_array_equal(made.values["table/table"][VOCABULARY:], own[VOCABULARY:])
    assert difference(child, parent, tokens()) == 0


def test_a_class_token_and_positions_go_with_the_units() -> None:
    def build(width: int) -> keras.Model:
        token, place = ClassToken(), PositionEmbedding(0.1)
        attention = layers.MultiHeadAttention(2, width)
        inputs = keras.Input((5, 6))
        x = place(token(layers.Dense(width)(inputs)))
        return keras.Model(inputs, layers.Dense(CLASSES)((x + attention(x, x))[:, 0]))

    parent, child = randomize(build(4)), build(7)
    assert warm(child, parent, in_order).carried == 1
    assert difference(child, parent, sequences()) < SAME


def grouped(width: int, groups: int, each: int, size: int, gate: bool) -> keras.Model:
    """Grouped-query attention of a sequence to another one, and then to itself."""
    one, two = keras.Input((5, 6)), keras.Input((4, 6))
    x, y = layers.Dense(width)(one), layers.Dense(width)(two)
    for other in (y, x):
        attention = layers.GroupQueryAttention(size, groups * each, groups, use_gate=gate)
        x = attention(x, value=other)
    return keras.Model([one, two], layers.Dense(CLASSES)(x))


@pytest.mark.parametrize(
    "sizes",
    [(7, 2, 2, 3), (4, 3, 2, 3), (4, 2, 3, 3), (4, 2, 2, 5), (9, 5, 3, 7)],
    ids=["reads", "groups", "heads in a group", "wider heads", "all"],
)
@pytest.mark.parametrize("gate", [True, False])
def test_grouped_queries_of_more_or_wider_heads_compute_the_same(
    sizes: tuple[int, int, int, int], gate: bool
) -> None:
    data = [sequences(), sequences(length=4)]
    parent, child = randomize(grouped(4, 2, 2, 3, gate)), grouped(*sizes, gate)
    made = warm(child, parent, in_order)
    assert made.carried == 1
    assert made.departures == ()
    assert difference(child, parent, data) < SAME


def test_attention_with_lora_is_unknown() -> None:
    """Its weights are copied if they have the same shapes."""

    def build(width: int) -> keras.Model:
        inputs = keras.Input((5, 6))
        attention = layers.MultiHeadAttention(2, width)
        model = keras.Model(inputs, layers.Dense(CLASSES)(attention(inputs, inputs)))
        attention.query_dense.enable_lora(2)
        return model

    parent, same, wider = randomize(build(4)), build(4), build(7)
    assert {each.action for each in warm(same, parent, in_order).report} == {"copied"}
    assert difference(same, parent, sequences()) == 0
    assert "fresh" in {each.action for each in warm(wider, parent, in_order).report}


# Units that are averaged by a function


def with_mean_of_channels(width: int) -> keras.Model:
    """Each pixel times a factor that depends on all of its channels."""
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(width, 3, activation="relu")(inputs)
    mean, largest = ops.mean(x, axis=-1, keepdims=True), ops.max(x, axis=-1, keepdims=True)
    factor = layers.Conv2D(1, 3, padding="same", activation="sigmoid")(
        layers.Concatenate()([mean, largest])
    )
    x = layers.GlobalAveragePooling2D()(x * factor)
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


@pytest.mark.parametrize("times", [2, 3])
def test_a_mean_of_channels_times_wider_computes_the_same(times: int) -> None:
    parent, child = randomize(with_mean_of_channels(4)), with_mean_of_channels(4 * times)
    assert warm(child, parent, in_order).carried == 1
    assert difference(child, parent, images(pixels=8)) < SAME


# Inputs and outputs of any structure, sizes that are not known, weights that are not the layer's


def test_inputs_and_outputs_may_have_names() -> None:
    def build(width: int) -> keras.Model:
        inputs = {name: keras.Input((6,), name=name) for name in ("b", "a")}
        x, y = layers.Dense(width)(inputs["a"]), layers.Dense(width + 1)(inputs["b"])
        both = layers.Concatenate()([x, y])
        return keras.Model(inputs, {"z": layers.Dense(2)(x), "y": layers.Dense(3)(both)})

    parent, child = randomize(build(4)), build(7)
    assert warm(child, parent, in_order).carried == 1
    assert difference(child, parent, {"a": vectors(), "b": -vectors()}) < SAME


def test_numbers_of_pixels_and_steps_need_not_be_known() -> None:
    def of_pixels(width: int) -> keras.Model:
        return chain(
            layers.Conv2D(width, 3, 2, padding="same"),
            layers.Conv2D(width, 3, padding="same"),
            layers.GlobalMaxPooling2D(),
            layers.Dense(CLASSES),
            shape=(None, None, 3),
        )

    def of_steps(width: int) -> keras.Model:
        table = layers.Embedding(VOCABULARY, width)
        return chain(table, layers.LSTM(width), layers.Dense(2), shape=(None,), dtype="int32")

    for build, data in ((of_pixels, images()), (of_steps, tokens())):
        parent, child = randomize(build(4)), build(7)
        assert warm(child, parent, in_order).carried == 1
        assert difference(child, parent, data) < SAME


def test_a_layer_with_lora_is_unknown() -> None:
    """What Keras calls its kernel is a sum; its weights are copied if they have the same shapes."""

    def build(width: int) -> keras.Model:
        dense = layers.Dense(width)
        model = chain(dense, layers.Dense(CLASSES), shape=(6,))
        dense.enable_lora(2)
        return model

    parent, same, wider = build(4), build(4), build(7)
    assert {each.action for each in warm(same, parent, in_order).report} == {"copied"}
    assert difference(same, parent, vectors()) == 0
    assert "fresh" in {each.action for each in warm(wider, parent, in_order).report}
