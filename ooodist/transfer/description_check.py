"""Checks a layer's description: a wider layer must compute what a narrow one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from ooodist.errors import UserError
from ooodist.step.backward import named_variables
from ooodist.transfer.answers import SAME
from ooodist.transfer.graph.description import Term
from ooodist.transfer.graph.keras_described import description_of, weights_of
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.mapping.transform import transform

SAMPLES, READ, MADE = 4, 3, 7  # of the models around the layer, which read and make so many units


def check_description(
    make: Callable[[int], keras.Layer],
    *,
    units: int = 8,
    shape: Sequence[int] = (5,),
    below: int = 0,
) -> None:
    """Checks the description of a layer by widening it.

    Makes models of ``units`` units, of one and a half times and of twice as many, with the layer
    between two Dense layers, and random weights. The wider ones get copies of the units of the
    first one, by the description, and all get the same random inputs. If the description is right,
    twice the units give the same answers, and one and a half times the units do, too, unless it
    shows why not (an average, of which some units are a larger part).

    Args:
        make: makes the layer for an input with so many units on its last axis; a second input
            whose units have another name has a quarter more. All that is to be copied, such as
            heads, should grow with them.
        units: the number of units of the narrow layer.
        shape: shape of the inputs without the axis of samples and the last axis.
        below: 0, or for a layer that looks up integers of this ``shape``: the first one that it
            does not have.

    Raises:
        UserError: the layer has no description, it does not fit the layer, or it is wrong.
    """
    parent, layer = _model(make, units, shape, below)
    _randomize(parent, np.random.default_rng(0))
    inputs = _inputs(parent, np.random.default_rng(1), below)
    _check_scaling(parent, layer, inputs)
    expected = _outputs(parent, inputs)
    largest = float(np.abs(expected).max())
    for width in (2 * units, units + units // 2):
        child, _ = _model(make, width, shape, below)
        departures = _widen(child, parent)
        difference = float(np.abs(_outputs(child, inputs) - expected).max()) / largest
        if departures and width == 2 * units:
            raise UserError(
                f"by its description, {type(layer).__name__} has no copies of all units in a layer "
                f"with {width} in place of {units}: {departures[0]}"
            )
        if not departures and not difference <= SAME:
            raise UserError(
                f"the description of {type(layer).__name__} is wrong: a layer with {width} units, "
                f"which are copies of {units}, gives answers that are off by {difference:.2g} of "
                "the largest; see which units each axis of its weights runs over, what the layer "
                "sums over, and what it averages"
            )


def _model(
    make: Callable[[int], keras.Layer], width: int, shape: Sequence[int], below: int
) -> tuple[keras.Model, keras.Layer]:
    layer = make(width)
    description = description_of(layer)
    if description is None:
        raise UserError(
            f"{type(layer).__name__} has no description, or a call of its own that its base class "
            "does not have; give it one by ooodist.describe_layer"
        )
    names = [*dict.fromkeys(description.inputs.values())]
    widths = [width + width // 4 * names.index(each) for each in description.inputs.values()]
    symbols = [
        keras.Input(tuple(shape) if below else (*shape, READ), dtype="int32" if below else None)
        for _ in description.inputs or [""]
    ]
    read = (
        symbols
        if below
        else [
            keras.layers.Dense(size)(symbol)
            for size, symbol in zip(widths or [width], symbols, strict=True)
        ]
    )
    named = dict(zip(description.inputs, read, strict=False))
    made = layer(**named) if named else layer(*read)
    weights_of(layer, description)  # which raises what the graph only logs
    return keras.Model(symbols, keras.layers.Dense(MADE)(made)), layer


def _randomize(model: keras.Model, random: np.random.Generator) -> None:
    """Gives weights values as after some training; statistics, which may be variances, grow."""
    for variable in model.weights:
        noise = random.normal(0, 0.3, variable.shape)
        variable.assign(variable + (noise if variable.trainable else np.abs(noise)))


def _check_scaling(model: keras.Model, layer: keras.Layer, inputs: list[np.ndarray]) -> None:
    """Scales the weights that each unit of the layer's output is to be proportional to."""
    description = description_of(layer)
    assert description is not None
    body = keras.Model(model.inputs, model.layers[-1].input)
    before = _outputs(body, inputs)
    factors = np.linspace(0.5, 2, before.shape[-1])
    for attribute, variable in weights_of(layer, description).items():
        if attribute in description.scaling:
            added = float(attribute in description.one_plus)
            at = description.terms[attribute].index(Term(description.output))
            along = factors.reshape([-1 if n == at else 1 for n in range(len(variable.shape))])
            variable.assign((np.asarray(variable) + added) * along - added)
    expected, after = before * factors, _outputs(body, inputs)
    if description.scaling and np.abs(after - expected).max() > SAME * np.abs(expected).max():
        raise UserError(
            f"the description of {type(layer).__name__} is wrong: the units of its output are "
            f"not proportional to {', '.join(description.scaling)}, all together, as scaling says"
        )


def _inputs(model: keras.Model, random: np.random.Generator, below: int) -> list[np.ndarray]:
    shapes = [(SAMPLES, *symbol.shape[1:]) for symbol in model.inputs]
    if below:
        return [random.integers(0, below, each).astype(np.int32) for each in shapes]
    return [random.normal(size=each).astype(np.float32) for each in shapes]


def _outputs(model: keras.Model, inputs: list[np.ndarray]) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(model(inputs, training=False)), np.float64)


def _widen(child: keras.Model, parent: keras.Model) -> tuple[str, ...]:
    """Gives a model the units of a narrower one; returns where it computes something else."""
    graph, source = graph_of(child), graph_of(parent)
    variables: dict[str, Any] = named_variables(child)
    own, values = (
        {name: np.asarray(variable) for name, variable in named_variables(model).items()}
        for model in (child, parent)
    )
    pairs = [(number, number) for number in range(len(graph.nodes))]
    made = transform(graph, own, source, values, pairs)
    for name, value in made.values.items():
        variables[name].assign(value)
    return made.departures
