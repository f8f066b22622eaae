"""Layers as users write them, with weights of their own, and their descriptions."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from ooodist.transfer.graph.description import LayerDescription, describe_layer


class Scale(layers.Layer):  # type: ignore[misc, unused-ignore]
    """One factor for each unit, and one offset if there is to be one."""

    def __init__(self, offset: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.has_offset = offset
        self.offset = None

    def build(self, shape: Any) -> None:
        self.gamma = self.add_weight(shape=(shape[-1],), initializer="ones", name="gamma")
        if self.has_offset:
            self.offset = self.add_weight(shape=(shape[-1],), name="offset")

    def call(self, inputs: Any) -> Any:
        scaled = inputs * self.gamma
        return scaled if self.offset is None else scaled + self.offset


SCALE = LayerDescription({"gamma": "x", "offset": "x"}, output="x", scaling=("gamma", "offset"))


class Norm(layers.Layer):  # type: ignore[misc, unused-ignore]
    """A root-mean-square norm whose scale is added to one, as in Gemma."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="zeros", name="scale")

    def call(self, inputs: Any) -> Any:
        square = ops.mean(ops.square(inputs), axis=-1, keepdims=True)
        return inputs * ops.rsqrt(square + 1e-3) * (1 + self.scale)


NORM = LayerDescription({"scale": "1 + x"}, output="x", averaged=("x",))
NORM_OF_ANY_WIDTH = LayerDescription(
    {"scale": "1 + x"}, output="x", averaged=("x",), kind="RMSNormalization"
)


class Attention(layers.Layer):  # type: ignore[misc, unused-ignore]
    """Attention from one sequence to another, with several query heads for each key head."""

    def __init__(self, groups: int, each: int, key: int, value: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.groups, self.each, self.key, self.value = groups, each, key, value

    def build(self, query_shape: Any, others_shape: Any) -> None:
        heads = self.groups * self.each
        self.q = self.add_weight(shape=(query_shape[-1], heads, self.key), name="q")
        self.k = self.add_weight(shape=(self.groups, others_shape[-1], self.key), name="k")
        self.v = self.add_weight(shape=(others_shape[-1], self.groups, self.value), name="v")
        self.o = self.add_weight(shape=(heads, self.value, query_shape[-1]), name="o")

    def call(self, query: Any, others: Any) -> Any:
        q = ops.einsum("bqx,xhk->bhqk", query, self.q)
        k = ops.repeat(ops.einsum("bsy,gyk->bgsk", others, self.k), self.each, axis=1)
        v = ops.repeat(ops.einsum("bsy,ygv->bgsv", others, self.v), self.each, axis=1)
        scores = ops.einsum("bhqk,bhsk->bhqs", q, k) / self.key**0.5
        seen = ops.einsum("bhqs,bhsv->bhqv", ops.softmax(scores), v)
        return ops.einsum("bhqv,hvo->bqo", seen, self.o)


ATTENTION_WEIGHTS = {
    "q": "sum(x) groups* dot(key)",
    "k": "groups sum(y) key",
    "v": "sum(y) groups value",
    "o": "sum(groups*) sum(value) out",
}
ATTENTION = LayerDescription(
    ATTENTION_WEIGHTS,
    output="out",
    inputs={"query": "x", "others": "y"},
    scaling=("o",),
)


class Table(layers.Layer):  # type: ignore[misc, unused-ignore]
    """Vectors of integers."""

    def __init__(self, width: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.width = width

    def build(self, shape: Any) -> None:
        self.rows = self.add_weight(shape=(9, self.width), name="rows")

    def call(self, tokens: Any) -> Any:
        return ops.take(self.rows, tokens, axis=0)


TABLE = LayerDescription({"rows": "rows(words) out"}, output="out", scaling=("rows",))


class Multiplier(layers.Layer):  # type: ignore[misc, unused-ignore]
    """Makes two numbers of each unit."""

    def build(self, shape: Any) -> None:
        self.factors = self.add_weight(shape=(2 * shape[-1],), initializer="ones", name="factors")
        self.reading = self.add_weight(shape=(2 * shape[-1], 3), name="reading")

    def call(self, inputs: Any) -> Any:
        return ops.matmul(ops.repeat(inputs, 2, axis=-1) * self.factors, self.reading)


MULTIPLIER = LayerDescription(
    {"factors": "x*", "reading": "sum(x*) out"}, output="out", scaling=("reading",)
)


class Cached(layers.MultiHeadAttention):  # type: ignore[misc, unused-ignore]
    """Keras's attention with a call of its own, as KerasHub's."""

    def call(
        self, query: Any, value: Any, key: Any = None, attention_mask: Any = None, cache: Any = None
    ) -> Any:
        assert cache is None
        return super().call(query, value, key, attention_mask=attention_mask)


CACHED = LayerDescription(like=layers.MultiHeadAttention, inputs={"query": "x", "value": "y"})


def describe() -> None:
    """Describes all of them as they are."""
    describe_layer(Scale, SCALE)
    describe_layer(Norm, NORM)
    describe_layer(Attention, ATTENTION)
    describe_layer(Table, TABLE)
    describe_layer(Multiplier, MULTIPLIER)
    describe_layer(Cached, CACHED)


def undescribed() -> type:
    """A class like Scale that has no description."""

    class Other(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
        build = Scale.build
        call = Scale.call
        has_offset = False
        offset = None

    return Other
