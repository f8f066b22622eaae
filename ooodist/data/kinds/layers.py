"""Applies the layers of ``data.preprocess`` and ``data.augment`` to x, in the data sets.

Random numbers of a sample depend on the job's seed and its place in the sample stream alone
(``stream.py``): a resumed run sees what the uninterrupted one saw, with any number of workers.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ooodist.compat.keras_layer import draw_from
from ooodist.config.data import DataLayers, Layers
from ooodist.config.keras_layers import make_layer
from ooodist.data.elements import check_dtype
from ooodist.data.reading import map_batches, map_elements, untuned
from ooodist.data.result import Data
from ooodist.data.stream import Share
from ooodist.errors import UserError, brief

_AUGMENT = 2  # of the seed; other numbers there are those of epochs
Apply = Callable[[tf.Tensor], tf.Tensor]


class _SampleSeeds(keras.random.SeedGenerator):
    """Gives layers one seed after another, made of that of a sample."""

    def __init__(self) -> None:
        super().__init__(0)
        self.begin(tf.zeros(2, tf.int64))

    def begin(self, seed: tf.Tensor) -> None:
        """Begins a sample; ``seed``: int64 of shape (2,)."""
        self._seed, self._drawn = seed, 0

    def next(self, ordered: bool = True) -> tf.Tensor:
        self._drawn += 1
        return tf.random.fold_in(self._seed, self._drawn)


def with_layers(data: Data, config: DataLayers, share: Share) -> Data:
    """The data with the layers applied, or as it is if there are none.

    Raises:
        UserError: a layer cannot be applied to x, or x of training and validation would differ in
            shape.
    """
    augment: Layers = () if isinstance(config.augment, bool) else config.augment
    if not config.preprocess and not augment:
        return data
    if not isinstance(data.input_spec, tf.TensorSpec):
        raise UserError(
            f"data.preprocess and data.augment are for a single x, but here it is "
            f"{data.input_spec}; leave them out, and change x in a function that returns the data "
            "set: data: package.module:function"
        )
    seeds = _SampleSeeds()
    sample = tf.zeros((1, *data.input_spec.shape), data.input_spec.dtype)
    before, sample = _made("preprocess", config.preprocess, sample, seeds, training=False)
    behind, augmented = _made("augment", augment, sample, seeds, training=True)
    if data.validation is not None and augmented.shape != sample.shape:
        raise UserError(
            f"data.augment turns x of shape {tuple(sample.shape[1:])} into shape "
            f"{tuple(augmented.shape[1:])}, but validation keeps the former; let it end with "
            "resizing to that shape, or change the shape in data.preprocess"
        )

    def preprocessed(x: tf.Tensor, y: Any) -> Any:
        return before(x), y

    train, validation = data.train, data.validation
    if config.preprocess:
        train = map_batches(train, preprocessed)
        validation = None if validation is None else map_batches(validation, preprocessed)
    if augment:
        train = _augmented(train, behind, seeds, share)
    spec = train.element_spec[0]
    return dataclasses.replace(
        data,
        train=_finished(train),
        validation=None if validation is None else _finished(validation),
        input_spec=tf.TensorSpec(spec.shape[1:], spec.dtype),
    )


def _finished(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return untuned(dataset.prefetch(tf.data.AUTOTUNE))


def _augmented(
    train: tf.data.Dataset, augment: Apply, seeds: _SampleSeeds, share: Share
) -> tf.data.Dataset:
    """Applies ``augment`` to each x, as a batch of one, with seeds of its place in the stream."""
    seed = tf.constant([share.seed, -_AUGMENT], tf.int64)

    def placed(step: tf.Tensor, batch: tuple[Any, Any]) -> Any:
        first = step * share.global_batch + share.rank * share.batch
        return first + tf.range(share.batch, dtype=tf.int64), *batch

    def augmented(place: tf.Tensor, x: tf.Tensor, y: Any) -> Any:
        seeds.begin(tf.random.fold_in(seed, place))
        return augment(x[None])[0], y

    samples = train.enumerate(share.start_step).map(placed).unbatch()
    return map_elements(samples, augmented).batch(share.batch, drop_remainder=True)


def _made(
    key: str, layers: Layers, sample: tf.Tensor, seeds: _SampleSeeds, *, training: bool
) -> tuple[Apply, tf.Tensor]:
    """Makes the layers, builds them, and returns what applies them, and what they make of a sample.

    Args:
        key: of the layers.
        layers: by name.
        sample: x of one sample, as a batch.
        seeds: what random layers draw from.
        training: how they are called.
    """
    made: list[Apply] = []
    for index, named in enumerate(layers):
        path = f"data.{key}[{index}]"
        layer = make_layer(named, path)
        made.append(_as_function(layer, seeds, training=training))
        try:
            result = tf.convert_to_tensor(made[-1](sample))
        except Exception as error:
            given = f"{sample.dtype.name} {tuple(sample.shape[1:])}"
            raise UserError(
                f"{path}: {named.name} cannot be applied to x, which is {given}: {brief(error)}"
            ) from error
        check_dtype(f"what {path} ({named.name}) makes of x", result.dtype)
        sample = result

    def apply(x: tf.Tensor) -> tf.Tensor:
        for each in made:
            x = each(x)
        return x

    return tf.autograph.experimental.do_not_convert(apply), sample


def _as_function(
    layer: Callable[..., Any], seeds: _SampleSeeds, *, training: bool
) -> Callable[[tf.Tensor], Any]:
    """A function of x that calls a layer, or a user's function."""
    options: dict[str, Any] = {}
    if isinstance(layer, keras.Layer):
        draw_from(layer, seeds)
        if "training" in inspect.signature(layer.call).parameters:
            options["training"] = training
    elif training and "seed" in inspect.signature(layer).parameters:
        return lambda x: layer(x, seed=seeds.next())
    return lambda x: layer(x, **options)
