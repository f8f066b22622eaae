"""Records and compares a model's answers to random inputs that anyone can reproduce.

A zoo's models are never run where another model starts from them. So whoever adds a model asks it
a few questions, random inputs of the shapes that it takes, and stores some of the numbers that
come out. A model that starts from it is asked the same: if its answers differ, the function was
lost on the way, and the difference says by how much.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ooodist.errors import UserError
from ooodist.transfer.graph.graph import Graph, Node

if TYPE_CHECKING:
    import keras

logger = logging.getLogger("ooodist")

SAMPLES = 4
SEED = 20
MOST_NUMBERS = 2**22  # in all questions together, and in one output
KEPT = 256  # numbers stored of each output
UNKNOWN_SIZE, SHORT_SIZE = 32, 8  # for an axis of unknown size; where the first is too long
DIGITS = 7  # significant digits of an answer
SAME, SAME_IN_HALF = 1e-4, 3e-2
"""Rounding errors allowed, as shares of the largest answer: in general, with 16-bit layers."""


@dataclass(frozen=True)
class Question:
    """The random numbers that an input gets.

    Attributes:
        shape: shape of the input, including the axis of samples.
        below: integers from 0 to below this; 0: normally distributed numbers.
    """

    shape: tuple[int, ...]
    below: int = 0


@dataclass(frozen=True)
class Answer:
    """Some numbers of an output, evenly spread over it.

    Attributes:
        shape: shape of the output, including the axis of samples.
        numbers: at most ``KEPT`` numbers.
    """

    shape: tuple[int, ...]
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Answers:
    """A model's answers to its questions.

    Attributes:
        questions: one for each input.
        outputs: one for each output.
        in_half: whether any layer of the model computes in 16 bits.
    """

    questions: tuple[Question, ...]
    outputs: tuple[Answer, ...]
    in_half: bool = False


def check(answers: Answers) -> None:
    """Raises UserError if asking would take too much memory, or the numbers are inconsistent."""
    shapes = [each.shape for each in answers.questions]
    shapes += [each.shape for each in answers.outputs]
    if any(size < 1 for shape in shapes for size in shape):
        raise UserError("its answers have a size below 1")
    if any(math.prod(shape) > MOST_NUMBERS for shape in shapes):
        raise UserError(f"its answers have a shape of more than {MOST_NUMBERS} numbers")
    if any(not 0 <= each.below < 2**31 for each in answers.questions):
        raise UserError("its questions have limits that are none")
    for each in answers.outputs:
        if len(each.numbers) != len(_places(each.shape)):
            raise UserError("its answers have more or fewer numbers than their shapes say")
        if not np.isfinite(each.numbers).all():
            raise UserError("its answers are not finite")


def ask(model: keras.Model, graph: Graph) -> Answers | None:
    """A model's answers; None if its inputs are unknown or its outputs not finite.

    The model runs in inference mode and is left as it is.
    """
    for size in (UNKNOWN_SIZE, SHORT_SIZE):
        for below in (0, 2):
            try:
                return _asked(model, graph, size, below)
            except Exception as error:  # whatever a user's model does with such numbers
                logger.debug("warm start: model %s was not asked: %s", model.name, error)
    return None


def _asked(model: keras.Model, graph: Graph, size: int, below: int) -> Answers:
    """A model's answers. Raises whatever a user's model does.

    Args:
        model: the model.
        graph: its graph.
        size: size of axes of which it is unknown.
        below: limit of the integers for inputs of which it is unknown; 0: no integers. Layers of
            which nothing is known may look them up in a table.
    """
    questions = []
    for number, symbol in enumerate(_inputs(model)):
        each = _question(number, symbol, graph, size)
        questions.append(each if each.below else replace(each, below=below))
    if sum(math.prod(each.shape) for each in questions) > MOST_NUMBERS:
        raise UserError(f"its inputs have more than {MOST_NUMBERS} numbers")
    outputs = [
        Answer(value.shape, tuple(float(f"{x:.{DIGITS}g}") for x in _picked(value)))
        for value in _outputs(model, questions)
    ]
    answers = Answers(tuple(questions), tuple(outputs), computes_in_half(model))
    check(answers)
    return answers


def difference(model: keras.Model, answers: Answers) -> float | None:
    """How far a model's answers are from another's, as a share of the largest answer.

    None if the two take or make different shapes, so that they cannot be compared.
    """
    try:
        takes = [tuple(symbol.shape) for symbol in _inputs(model)]
        if len(takes) != len(answers.questions) or not all(
            _is_taken(one.shape, shape) for one, shape in zip(answers.questions, takes, strict=True)
        ):
            return None
        found = _outputs(model, answers.questions)
    except Exception as error:  # unknown tokens, or whatever a user's model does
        logger.debug("warm start: model %s could not be asked: %s", model.name, error)
        return None
    if [value.shape for value in found] != [each.shape for each in answers.outputs]:
        return None
    shares = [0.0]
    for value, each in zip(found, answers.outputs, strict=True):
        expected = np.array(each.numbers)
        largest = max(float(np.abs(expected).max()), float(np.finfo(np.float32).tiny))
        shares.append(float(np.abs(_picked(value) - expected).max()) / largest)
    return max(shares) if np.isfinite(shares).all() else math.inf


def computes_in_half(model: keras.Model) -> bool:
    """Whether any layer computes in 16 bits."""
    from ooodist.compat.keras_model import layers_of

    return any("16" in str(layer.compute_dtype) for layer in layers_of(model))


def _inputs(model: keras.Model) -> list[Any]:
    import keras

    from ooodist.transfer.graph.keras_functional import as_functional

    functional = as_functional(model)
    if functional is None:
        raise ValueError("it takes no symbols")
    return list(keras.tree.flatten(functional.inputs))


def _question(number: int, symbol: Any, graph: Graph, unknown_size: int) -> Question:
    shape = (SAMPLES, *symbol.shape[1:])
    if symbol.shape[0] is not None:
        shape = tuple(symbol.shape)
    shape = tuple(unknown_size if size is None else int(size) for size in shape)
    if "float" in symbol.dtype:
        return Question(shape, _below(graph, number))
    return Question(shape, _num_tokens(graph, number))


def _below(graph: Graph, number: int) -> int:
    """The limit of whole numbers that an input of floats is for; 0 if it is for others.

    So many are a table's rows, or what the first layers scale down: an image's 0 to 255.
    """
    from_there, limits = {number}, []
    for at, node in enumerate(graph.nodes):
        if from_there.intersection(node.inputs):
            takes = (node.settings or {}).get("takes")
            limits += [takes + 1] if isinstance(takes, int) else []
            limits += [weight.axes[0].size for weight in _tables(node)]
            if not node.weights and not takes:
                from_there.add(at)
    return min(limits, default=0)


def _num_tokens(graph: Graph, number: int) -> int:
    """How many different integers an input may hold: as many as its tables have rows."""
    from_there = {number}
    for at, node in enumerate(graph.nodes):
        if from_there.intersection(node.inputs):
            from_there.add(at)
    rows = [weight.axes[0].size for at in from_there for weight in _tables(graph.nodes[at])]
    return min(rows, default=2)


def _tables(node: Node) -> list[Any]:
    return [weight for weight in node.weights if weight.kind == "table"]


def _outputs(model: keras.Model, questions: Sequence[Question]) -> list[np.ndarray]:
    import keras

    from ooodist.compat.keras_graph import inputs_structure
    from ooodist.transfer.graph.keras_functional import as_functional

    random = np.random.RandomState(SEED)  # the same numbers in all versions of NumPy
    values = [
        random.randint(0, each.below, each.shape).astype("int32")
        if each.below
        else random.standard_normal(each.shape).astype("float32")
        for each in questions
    ]
    functional = as_functional(model)
    assert functional is not None
    given = keras.tree.pack_sequence_as(inputs_structure(functional), values)
    made = functional(given, training=False) if isinstance(functional, keras.Model) else None
    if made is None:
        made = functional(given)
    return [
        np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(each, "float32")), np.float64)
        for each in keras.tree.flatten(made)
    ]


def _places(shape: Sequence[int]) -> np.ndarray:
    count = math.prod(shape)
    return np.linspace(0, count - 1, min(count, KEPT)).astype(np.int64)


def _picked(value: np.ndarray) -> np.ndarray:
    return value.reshape(-1)[_places(value.shape)]


def _is_taken(shape: Sequence[int], by: Sequence[int | None]) -> bool:
    if len(shape) != len(by):
        return False
    return all(size in (own, None) or own is None for size, own in zip(shape, by, strict=True))
