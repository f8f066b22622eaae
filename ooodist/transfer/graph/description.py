"""Describes what a layer does to units, for layers that are not Keras's own.

Each axis of a weight has a name, and axes of the same name run over the same units::

    query kernel    (32, 4, 8)     "sum(x) heads dot(key)"
    output kernel   (4, 8, 32)     "sum(heads) sum(value) out"

KerasHub's layers are described in keras_descriptions.py. keras_described.py adds a described layer
to the graph of its model, and description_check.py tries a description.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ooodist.errors import UserError

_TERM = re.compile(r"(?:(sum|rows|dot)\((\w+)(\*?)\)|(\w+)(\*?))")
_PLUS_ONE = re.compile(r"1 *\+ *")


@dataclass(frozen=True)
class Term:
    """What an axis of a weight runs over.

    Attributes:
        name: the name of its units; ``_`` if they are unknown.
        use: ``sum``, ``rows`` or ``dot``, as in :class:`LayerDescription`; empty for all others.
        repeated: whether the axis has several indices in a row for each unit.
    """

    name: str
    use: str = ""
    repeated: bool = False


@dataclass(frozen=True)
class LayerDescription:
    """What a layer of your own does to units, so that a warm start can copy them.

    The units on the last axis of the layer's input are named ``x``; you name the others. Axes of
    the same name run over the same units::

        LayerDescription({"gamma": "x"}, output="x", scaling=("gamma",))
        LayerDescription({"kernel": "sum(x) out", "bias": "out"}, output="out")

    An axis is one of:

    * ``x``, ``heads``: each of these units has numbers of its own. The layer makes or scales them.
    * ``sum(x)``: the layer sums over these units.
    * ``dot(key)``: the layer sums products of these units, and divides by the root of their number,
      as attention does with queries and keys. Only the last axis of the queries' weights says so;
      for the weights of the keys it is ``key``.
    * ``rows(words)``: rows of a table, which are looked up by number.
    * ``kv*``: several indices in a row belong to each unit, such as the query heads of a key head.
    * ``_``: unknown. It only fits an axis of the same size.

    A weight to which the layer adds one begins with ``1 +``, as in ``"1 + x"``.

    Attributes:
        weights: the axes of each weight, by its attribute, such as ``"output_dense.kernel"``. All
            weights must be there. An attribute may be missing or None, as a bias that is not used.
        output: name of the units on the last axis of the output; empty if they are unknown.
        inputs: names of the units of several inputs, by the argument of ``call``. If it is empty,
            the first argument has the units ``x``.
        averaged: names of the units of which the layer takes a mean, or a mean of squares; some
            weight has them.
        scaling: the weights, if there are some, that each unit of the output is proportional to,
            all together. They have an axis of the output's units.
        kind: what it computes; only layers of the same kind match. By default the name of the
            class. A ``RMSNormalization``, with the weight ``scale``, has any larger width.
        like: in place of all others: a class of Keras, such as the base class, that computes the
            same.

    Raises:
        UserError: the description contradicts itself.
    """

    weights: Mapping[str, str] = field(default_factory=dict)
    output: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    averaged: tuple[str, ...] = ()
    scaling: tuple[str, ...] = ()
    kind: str = ""
    like: type | None = None

    def __post_init__(self) -> None:
        named = {term.name for terms in self.terms.values() for term in terms}
        read = {*self.inputs.values()} or {"x"}
        known = named | read
        single = read | {
            term.name for terms in self.terms.values() for term in terms if not term.repeated
        }
        if not named <= single:
            name = min(named - single)
            raise UserError(
                f"a layer's description has an axis {name}*, and none of {name}, so that the "
                f"number of {name} is unknown"
            )
        if self.output and self.output not in known:
            raise UserError(
                f"a layer's description has {self.output} as its output, which is no axis of its "
                f"weights and inputs; these are {', '.join(sorted(known))}"
            )
        for each in self.averaged:
            if each not in named:
                raise UserError(
                    f"a layer's description has {each} in averaged, which is no axis of its "
                    f"weights; these are {', '.join(sorted(named)) or 'none'}"
                )
        for each in self.scaling:
            if Term(self.output) not in self.terms.get(each, ()):
                raise UserError(
                    f"a layer's description has {each} in scaling, which is none of its weights "
                    f"with an axis of the output's units ({self.output or 'unknown'})"
                )

    @functools.cached_property
    def terms(self) -> dict[str, tuple[Term, ...]]:
        """The axes of each weight."""
        return {attribute: _terms(attribute, text) for attribute, text in self.weights.items()}

    @property
    def one_plus(self) -> tuple[str, ...]:
        """The weights to which the layer adds one."""
        return tuple(each for each, text in self.weights.items() if _PLUS_ONE.match(text))


def _terms(attribute: str, text: str) -> tuple[Term, ...]:
    found = []
    for part in _PLUS_ONE.sub("", text, count=1).split():
        match = _TERM.fullmatch(part)
        if match is None:
            raise UserError(
                f"a layer's description has {part!r} among the axes of {attribute}; an axis is a "
                "name, or sum(name), dot(name), rows(name), name* or _"
            )
        use, inside, inside_star, plain, star = match.groups()
        found.append(Term(inside or plain, use or "", bool(inside_star or star)))
    if any(term.use == "dot" for term in found[:-1]):
        raise UserError(
            f"a layer's description has dot() on an axis of {attribute} that is not the last one, "
            "where it must be"
        )
    return tuple(found)


DESCRIBED: dict[type, LayerDescription] = {}
"""What programs have described."""


def describe_layer(layer: type, description: LayerDescription) -> None:
    """Describes a layer class of your own, so that a warm start can widen its layers.

    Call it before the model is given to :func:`ooodist.warm_start` or to a zoo, and try the
    description with :func:`ooodist.check_description`.

    Args:
        layer: the class. Its subclasses count, too, unless they have a ``call`` of their own.
        description: what it does to units.
    """
    DESCRIBED[layer] = description
