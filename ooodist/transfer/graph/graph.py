"""A model as a graph of operators, with what each axis of each weight runs over.

Units that belong together make a *space*: the channels that a convolution makes, which its batch
norm scales, to which a residual branch adds, and which the next convolution reads, are one space
and can only be widened together. An axis of a weight runs over one space or several in a row::

    Conv2D (3, 3, 16, 32)     kernel  kernel  in: space 4     out: space 7
    after a concatenation     kernel  kernel  in: spaces 4, 7 out: space 9
    Dense after a Flatten of 2 x 1 pixels     in: space 9 at (0, 0), space 9 at (1, 0)

Nothing here imports TensorFlow: graphs are stored in files and sent over the network.
keras_graph.py makes the graph of a Keras model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["in", "grouped", "out", "unit", "kernel", "fixed"]


@dataclass(frozen=True)
class Segment:
    """The units of one space, as a stretch of an axis.

    Attributes:
        space: number of the space in the graph.
        place: its place in ``grid``, if the space occurs once for each of several places, such as
            for each pixel after a Flatten.
        grid: the sizes of the grid of places.
        inner: how many indices of the axis each unit has, as with a depth multiplier.
    """

    space: int
    place: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    inner: int = 1


@dataclass(frozen=True)
class Axis:
    """One axis of a weight.

    Attributes:
        size: the number of its indices.
        role: ``in``: it is summed over; ``grouped``: the same in a grouped convolution, where the
            segments are all that is read and the size is that of one group; ``out``: it makes
            units; ``unit``: each unit has its own number, as in a batch norm; ``kernel``: pixels;
            ``fixed``: anything else, which only fits an axis of the same size.
        segments: what an axis runs over, unless its role is kernel or fixed.
    """

    size: int
    role: Role = "fixed"
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Weight:
    """A weight of an operator.

    Attributes:
        name: the Keras path of the variable, unique in the model.
        kind: its purpose in the operator, such as ``kernel`` or ``gamma``.
        axes: one for each axis of its shape.
        trainable: whether it is trained; batch-norm statistics, for example, are not.
    """

    name: str
    kind: str
    axes: tuple[Axis, ...]
    trainable: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return tuple(axis.size for axis in self.axes)


@dataclass(frozen=True)
class Node:
    """One use of an operator.

    Attributes:
        name: name of the layer; with a number appended from its second use on.
        op: what it computes, such as ``Conv2D:relu``; operators only fit others of the same kind.
        inputs: numbers of the nodes that it reads, all smaller than its own.
        weights: its weights; empty if another node of the same layer has them.
        settings: what else a transformation must know, such as strides.
    """

    name: str
    op: str
    inputs: tuple[int, ...] = ()
    weights: tuple[Weight, ...] = ()
    settings: dict[str, int | float | str | list[int]] | None = None

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the weights."""
        return tuple(weight.shape for weight in self.weights)

    def kinds(self, setting: str) -> list[str]:
        """The kinds of weights that a setting names."""
        return str((self.settings or {}).get(setting, "")).split()

    def added_to(self, weight: Weight) -> float:
        """What the operator adds to a weight before it uses it: 1 or 0."""
        return float(weight.kind in self.kinds("one_plus"))


@dataclass(frozen=True)
class Space:
    """Units that belong together.

    Attributes:
        size: the number of units.
        kind: ``units`` may be copied and left out; ``input`` and ``output`` are the model's own;
            ``fixed`` are units of which nothing is known, which are taken as they are: the first
            ones, where there are fewer.
        averaged: whether a norm averages the units, so that all must be copied equally often.
    """

    size: int
    kind: Literal["units", "input", "output", "fixed"] = "units"
    averaged: bool = False


@dataclass(frozen=True)
class Graph:
    """A model. ``nodes``: each after those that it reads."""

    nodes: tuple[Node, ...]
    spaces: tuple[Space, ...]
