"""Keras variables without values: made without memory, given values later, and released again.

Keras itself makes such variables while a model is called in a ``keras.StatelessScope``: they have
an initializer, and ``_value`` is None. Reading one runs the initializer each time. An initializer
draws its seed when it is made, so a value that is made later is the one that the variable would
have had. None of this is public: ``Variable._value``, ``_initializer``, ``_deferred_initialize``
and ``_initialize_with_initializer`` are as old as Keras 3.0. TensorFlow's
``UninitializedVariable``, a handle without memory, is not public either.

A variable that was released raises UserError when its value is read, except where another stands in
for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from ooodist.compat.attributes import replaced
from ooodist.errors import UserError

T = TypeVar("T")


def made_without_values(make: Callable[[], T], made: list[keras.Variable] | None = None) -> T:
    """What ``make`` returns; variables that it makes with an initializer have no values.

    Those that it makes from a value, as optimizers make the learning rate, do have it. This cannot
    be had with a StatelessScope, in which Keras refuses variables that are made from a value.

    Args:
        made: gets all variables without values.

    Raises:
        UserError: ``make`` sets values of variables.
    """
    with without_initializing() as found:
        try:
            result = make()
        except (AttributeError, ValueError) as error:  # Keras's loaders make the latter of it
            if "'NoneType' object has no attribute 'assign" not in str(error):
                raise
            raise UserError(
                "the function that builds the model sets values of its variables (set_weights, "
                "load_weights, assign), which they would have on every rank; give them "
                "initializers, or load a checkpoint once the model is made"
            ) from error
    if made is not None:
        made += found
    return result


@contextlib.contextmanager
def without_initializing() -> Iterator[list[keras.Variable]]:
    """Makes variables remember their initializers in this block, instead of running them.

    Yields a list of them, which grows.
    """
    made: list[keras.Variable] = []

    def remember(variable: keras.Variable, initializer: Callable[..., Any]) -> None:
        variable._value, variable._initializer = None, initializer
        made.append(variable)

    with replaced(
        keras.Variable,
        _initialize_with_initializer=remember,
        _deferred_initialize=lambda _: None,  # at the end of Keras' own scopes: not yet
    ):
        yield made


@contextlib.contextmanager
def assigning_to_those_with_values(
    may_differ: Sequence[keras.Variable] = (),
) -> Iterator[list[keras.Variable]]:
    """Assigns values to variables that have one already in a block; to others, nothing.

    A value of another shape is refused for either, as Keras does. So a file of the whole model can
    be loaded into a part of it, with memory for one array at a time.

    Args:
        may_differ: of these, the first that is given a value of another shape stays as it is, and
            so do all that are given theirs after it.

    Yields a list of those that stay, which grows.
    """
    plain, stay = keras.Variable.assign, list[keras.Variable]()
    ids = {id(variable) for variable in may_differ}

    def assign(variable: keras.Variable, value: Any) -> Any:
        fits = tuple(value.shape) == tuple(variable.shape)
        if id(variable) in ids and (stay or not fits):
            stay.append(variable)
            return value
        if has_value(variable):
            return plain(variable, value)
        if not fits:
            raise ValueError(f"{variable.path} has shape {variable.shape}, not {value.shape}")
        return value

    with replaced(keras.Variable, assign=assign):
        yield stay


def build_without_values(
    optimizer: keras.optimizers.Optimizer, weights: Sequence[keras.Variable]
) -> None:
    """Builds an optimizer for these weights; what it keeps for each of them has no value.

    What it makes from a value, as Adafactor does, does have it.
    """
    # TensorFlow's optimizers look at the value of each weight, and know weights by its identity.
    values = [weight._value for weight in weights]
    for weight in weights:
        weight._value = tf.Variable(tf.zeros([]))
    try:
        with without_initializing():
            optimizer.build(weights)
    finally:
        for weight, value in zip(weights, values, strict=True):
            weight._value = value


def train_those_with_values(
    optimizer: keras.optimizers.Optimizer,
    weights: Sequence[keras.Variable],
    others: Collection[int] = (),
    share: Callable[[], None] = lambda: None,
) -> None:
    """Makes a built optimizer train those of its weights that have values now, and no others.

    ``apply`` is called with some weights, but averages (``use_ema``) are made of all in
    ``_trainable_variables``, which ``_model_variables_moving_average`` matches one by one; and
    ``_trainable_variables_indices`` has the places of weights by the identity of their values.

    Args:
        optimizer: built for these weights, with :func:`build_without_values` or otherwise.
        weights: in the same order.
        others: ids of weights that another rank trains, although they have values here.
        share: called when weights have become their averages, at the end of fit.
    """
    inner = getattr(optimizer, "inner_optimizer", None)  # of LossScaleOptimizer
    if inner is not None:
        train_those_with_values(inner, weights, others, share)
    places = {
        place: weight
        for place, weight in enumerate(weights)
        if has_value(weight) and id(weight) not in others
    }
    own = list(places.values())
    attributes = vars(optimizer)  # set past Keras, which would list the weights for saving
    attributes["_trainable_variables_indices"] = {
        optimizer._var_key(weight): place for place, weight in places.items()
    }
    attributes["_trainable_variables"] = own
    if inner is None and optimizer.use_ema:
        averages = optimizer._model_variables_moving_average
        of_all = attributes.setdefault("_averages_of_all_weights", averages)
        attributes["_model_variables_moving_average"] = [of_all[place] for place in places]

        def finalize(_: Any) -> None:  # fit gives it all weights of the model
            type(optimizer).finalize_variable_values(optimizer, own)
            share()

        optimizer.finalize_variable_values = finalize


def has_value(variable: Any) -> bool:
    """Whether a variable has a value on this rank; variables of TensorFlow always have."""
    return getattr(variable, "_value", variable) is not None


def initialize(variable: keras.Variable) -> None:
    """Gives a variable without a value its initial one."""
    variable._deferred_initialize()


def initial_value(variable: keras.Variable, shape: tuple[int, ...]) -> tf.Tensor:
    """What the initializer of a variable without a value makes for another shape."""
    return variable._initializer(shape, dtype=variable.dtype)


def initialize_later(variable: keras.Variable) -> Callable[[], None]:
    """Gives a variable without a value memory, with zeros in it.

    Returns:
        a function that gives it its initial value.
    """
    initializer = variable._initializer
    variable._initializer = tf.zeros
    variable._deferred_initialize()
    return lambda: variable.assign(initializer(variable.shape, dtype=variable.dtype))


def set_value(variable: keras.Variable, value: Any) -> None:
    """Sets a variable to a value of its shape, whether it has one already or not."""
    if has_value(variable):
        variable.assign(value)
    else:
        variable._initializer = lambda shape, dtype: tf.cast(value, dtype)
        variable._deferred_initialize()


@contextlib.contextmanager
def standing_in(variables: Iterable[keras.Variable], *, with_memory: bool) -> Iterator[None]:
    """Makes those variables that have no value usable in this block; they have none after it.

    No initializer runs: a seed that it draws from would change, and a released variable has none.

    Args:
        variables: with and without values; those that have one keep it.
        with_memory: whether they are zeros, and ops that read them can run; if not, they take no
            memory, and graphs with such ops can only be traced.
    """
    missing = [variable for variable in variables if not has_value(variable)]
    for variable in missing:
        shape, dtype, trainable = variable.shape, variable.dtype, variable.trainable
        if with_memory:
            variable._value = tf.Variable(tf.zeros(shape, dtype), trainable=trainable)
        else:
            variable._value = UninitializedVariable(trainable=trainable, shape=shape, dtype=dtype)
    try:
        yield
    finally:
        for variable in missing:
            variable._value = None


@contextlib.contextmanager
def with_values(values: Iterable[tuple[keras.Variable, tf.Variable]]) -> Iterator[None]:
    """Gives variables without a value, of any shape, one in this block."""
    given = list(values)
    for variable, value in given:
        variable._value = value
    try:
        yield
    finally:
        for variable, _ in given:
            variable._value = None


def release(variable: keras.Variable, holder: str) -> None:
    """Frees a variable's value.

    Args:
        variable: with or without a value.
        holder: who has a value, as "rank 3 does"; for the message to those who read it here.
    """
    variable._value = None
    variable._initializer = _Absent(variable.path, holder)


class _Absent:
    """The initializer of a released variable."""

    def __init__(self, path: str, holder: str) -> None:
        self._path = path
        self._holder = holder

    def __call__(self, shape: Any, dtype: Any = None) -> tf.Tensor:
        raise UserError(
            f"the value of {self._path} was read, but this rank does not have it: {self._holder}; "
            "read it where it is, or have the whole model with ooodist.whole(model)"
        )
