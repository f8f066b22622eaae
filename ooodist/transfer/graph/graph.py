"""A model as a graph of operators, with what each axis of each weight runs over.

Units that belong together make a *space*: the channels that a convolution makes, which its batch
norm scales, to which a residual branch adds, and which the next convolution reads, are one space
and can only be widened together. An axis of a weight runs over one space or over several in a row::

    Conv2D (3, 3, 16, 32)     kernel  kernel  in: space 4     out: space 7
    behind a concatenation    kernel  kernel  in: spaces 4, 7 out: space 9
    Dense behind a Flatten of 2 x 1 pixels    in: space 9 at (0, 0), space 9 at (1, 0)

Nothing here imports TensorFlow: graphs are kept in files and travel through the network. How the
graph of a Keras model is made: keras_graph.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["in", "grouped", "out", "unit", "kernel", "fixed"]


@dataclass(frozen=True)
class Segment:
    """The units of one space, as a stretch of an axis.

    Attributes:
        space: its number among those of the graph.
        place: where it is in ``grid``, if the space is there once for each of several places, as
            for each pixel behind a Flatten.
        grid: the sizes that places are of.
        inner: indices of the axis for each unit, as with a depth multiplier.
    """

    space: int
    place: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    inner: int = 1


@dataclass(frozen=True)
class Axis:
    """One axis of a weight.

    Attributes:
        size: indices.
        role: ``in``: it is summed over; ``grouped``: the same of a convolution in groups, whose
            segments are all that is read, and whose size is that of one group; ``out``: it makes
            units; ``unit``: each unit has its own number, as in a batch norm; ``kernel``: pixels;
            ``fixed``: anything else, which only fits an axis of the same size.
        segments: what an axis of the roles in, out and unit runs over.
    """

    size: int
    role: Role = "fixed"
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Weight:
    """A weight of an operator.

    Attributes:
        name: Keras' path of the variable, which no other weight of the model has.
        kind: what it is to its operator, as ``kernel`` or ``gamma``.
        axes: as many as its shape has.
        trainable: or moved by other means, as batch-norm statistics.
    """

    name: str
    kind: str
    axes: tuple[Axis, ...]
    trainable: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(axis.size for axis in self.axes)


@dataclass(frozen=True)
class Node:
    """One operator where it is used.

    Attributes:
        name: of the layer; with a number behind it from its second use on.
        op: what it computes, as ``Conv2D:relu``: operators fit only others of the same kind.
        inputs: numbers of the nodes that it reads, all smaller than its own.
        weights: empty if another node, of the same layer, has them.
        settings: what else a transformation must know, as strides.
    """

    name: str
    op: str
    inputs: tuple[int, ...] = ()
    weights: tuple[Weight, ...] = ()
    settings: dict[str, int | float | str | list[int]] | None = None

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the weights."""
        return tuple(weight.shape for weight in self.weights)


@dataclass(frozen=True)
class Space:
    """Units that belong together.

    Attributes:
        size: how many.
        kind: ``units`` may be copied and left out; ``input`` and ``output`` are the model's own;
            ``fixed`` are units of which nothing is known, which are taken as they are: the first
            ones, where there are fewer.
        averaged: a layer norm takes the mean of the units, so that all must be copied as often.
    """

    size: int
    kind: Literal["units", "input", "output", "fixed"] = "units"
    averaged: bool = False


@dataclass(frozen=True)
class Graph:
    """A model. ``nodes``: each behind those that it reads."""

    nodes: tuple[Node, ...]
    spaces: tuple[Space, ...]
