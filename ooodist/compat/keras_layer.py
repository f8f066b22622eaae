"""Private state of Keras layers."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from ooodist.compat.attributes import replaced
from ooodist.compat.keras_model import layers_of

Moments = Callable[[tf.Tensor, tf.Tensor | None], tuple[tf.Tensor, tf.Tensor]]


def is_from_keras(thing: Any) -> bool:
    """Whether the class of a layer or metric is Keras's own and not a user's.

    Keras's modules are ``keras.src.…`` (since Keras 3.0); no public attribute says so.
    """
    return type(thing).__module__.startswith("keras.src.")


def infers_shapes() -> bool:
    """Whether Keras calls a layer in a graph that is thrown away, to learn what it makes:
    ``keras.src.backend.common.symbolic_scope``.

    No public function says so.
    """
    return bool(in_symbolic_scope())


def own_variables(layer: keras.Layer) -> list[keras.Variable]:
    """A layer's variables without inner layers': ``_trainable_variables`` and the others.

    The public lists include those of inner layers.
    """
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def own_layers(layer: keras.Layer) -> list[keras.Layer]:
    """The layers that a layer has as attributes: ``Layer._layers``.

    Only models have the public ``layers``.
    """
    found: list[keras.Layer] = list(layer._layers)
    return found


def shapes_at_build(layer: keras.Layer) -> Mapping[str, Any]:
    """The shapes a layer was built with, by argument: ``_build_shapes_dict`` (Keras 3.0).

    The public ``get_build_config`` has only the first one, or nothing.
    """
    shapes: Mapping[str, Any] = layer._build_shapes_dict
    return shapes


def embedding_table(layer: keras.layers.Embedding) -> keras.Variable:
    """The table itself: ``Embedding._embeddings`` (since Keras 3.0).

    The public ``embeddings`` adds what LoRA has learned, and then is not a variable.
    """
    return layer._embeddings


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """The axes over which a built batch norm takes its moments: ``_reduction_axes``.

    The public ``axis`` is the one that remains, and may be negative.
    """
    axes: list[int] = layer._reduction_axes
    return axes


def replaced_moments(
    layer: keras.layers.BatchNormalization, moments: Moments
) -> AbstractContextManager[None]:
    """Replaces how a batch norm computes a batch's mean and variance in a block.

    ``BatchNormalization._moments`` (since Keras 3.0) is the one place where it computes them; the
    public ``synchronized=True`` only works through tf.distribute.

    Args:
        layer: the batch norm.
        moments: gets the inputs and their mask; returns mean and variance, both (channels,).
    """
    return replaced(layer, _moments=moments)


def replace_inner_loop(layer: keras.layers.RNN, loop: Callable[..., Any]) -> None:
    """Replaces how a recurrent layer runs over time: ``RNN.inner_loop`` (since Keras 3.0).

    The public ``call`` also makes the first states, keeps the last ones and draws dropout masks.

    Args:
        layer: the layer.
        loop: called with the method that it replaces, and that method's arguments: sequences,
            initial_state, mask and training. Returns the last output, all outputs, and the states.
    """
    # Not a child of the layer, as Keras would make an attribute.
    object.__setattr__(layer, "inner_loop", partial(loop, type(layer).inner_loop.__get__(layer)))


def rnn(*arguments: Any, **options: Any) -> tuple[Any, Any, Any]:
    """Runs over time: ``keras.src.backend.rnn``; the public ``keras.layers.RNN`` needs a cell.

    See there for arguments and results. A step may give nested outputs.
    """
    from keras.src import backend

    result: tuple[Any, Any, Any] = backend.rnn(*arguments, **options)
    return result


@contextlib.contextmanager
def taking_symbols(layer: keras.Layer) -> Iterator[None]:
    """In this block, inner layers take symbols for all arguments of their ``call``.

    Keras's attention computes its output's shape in ``compute_output_spec`` (since Keras 3.0), with
    the arguments of its own ``call``. A subclass whose ``call`` has more, as KerasHub's cached
    attention, cannot be called with symbols then. That of ``Layer`` takes any arguments.
    """
    with contextlib.ExitStack() as stack:
        for each in layers_of(layer, include_self=False):
            taken = inspect.signature(each.compute_output_spec).parameters.values()
            takes_any = any(one.kind == inspect.Parameter.VAR_KEYWORD for one in taken)
            names = {one.name for one in taken}
            if not takes_any and not names >= inspect.signature(each.call).parameters.keys():
                general = partial(keras.Layer.compute_output_spec, each)
                stack.enter_context(replaced(each, compute_output_spec=general))
        yield


def draw_from(layer: keras.Layer, seeds: keras.random.SeedGenerator) -> None:
    """Makes a layer and its inner layers draw their seeds from here: ``generator`` of Keras's
    preprocessing layers, ``seed_generator`` of others.

    Layers make their own, from a number.
    """
    for each in layers_of(layer):
        for name in ("generator", "seed_generator"):
            if isinstance(getattr(each, name, None), keras.random.SeedGenerator):
                object.__setattr__(each, name, seeds)  # not tracked as a part of the layer
