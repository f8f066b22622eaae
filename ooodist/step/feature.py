"""What a program adds to the steps of data parallelism, in one class of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from ooodist.errors import UserError
from ooodist.graph.units import Gradient

if TYPE_CHECKING:
    from ooodist.step.rank_state import RankState


def through(
    features: Sequence[Feature], names: Sequence[str], gradients: Sequence[Gradient]
) -> Sequence[Gradient]:
    """What features make of gradients, one after the other.

    Raises:
        UserError: one returns other shapes, or another number of gradients.
    """
    for feature in features:
        given, gradients = gradients, list(feature.gradients(names, gradients))
        shapes = [
            [None if g is None else str(g.shape) for g in each] for each in (given, gradients)
        ]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"feature {feature.name}: gradients returns {len(gradients)} gradients of the "
                f"shapes {', '.join(map(str, shapes[1]))}; they must be those that it is given, "
                f"{len(given)} of {', '.join(map(str, shapes[0]))}"
            )
    return gradients


class Feature:
    """Does something with the gradients of each step.

    Give objects of your class to :func:`ooodist.distribute`, or name it in a job file::

        class Noise(ooodist.Feature):
            refuses = {"wire": "16 bits would round the noise away; take wire: float32"}

            def __init__(self, stddev):
                self.stddev = stddev

            def gradients(self, names, gradients):
                steps = self.state("steps", tf.zeros([], tf.int32))
                seed = [steps.assign_add(1), 0]
                return [g + tf.random.stateless_normal(g.shape, seed, 0.0, self.stddev)
                        for g in gradients]

        ooodist.distribute(model, features=[Noise(0.01)])

        features: [{name: "my_module:Noise", stddev: 0.01}]     # in a job file

    Attributes:
        refuses: what does not go together with it, as ``wire``, ``accumulate``, ``elastic`` or
            ``skip`` (see ``Training.given`` in settings/training.py), and the reason and way out.
    """

    refuses: Mapping[str, str] = {}
    _rank_state: RankState

    @property
    def name(self) -> str:
        """The name of its class, by which messages and checkpoints know it; override it to have
        two of a class."""
        return type(self).__name__

    def gradients(self, names: Sequence[str], gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """Changes, or only looks at, this rank's gradients, before they are exchanged.

        Called while a step is traced, once for each update.

        Args:
            names: of the weights, in the order of the model.
            gradients: of each weight: a tensor, rows of an embedding as ``tf.IndexedSlices``, or
                None if it has none or is not trained.

        Returns:
            as many gradients of the same shapes and dtypes. Ranks exchange them, and the optimizer
            gets the mean.
        """
        return gradients

    def state(self, name: str, start: tf.Tensor) -> tf.Variable:
        """A variable that checkpoints keep; the first call makes it.

        All ranks must change it alike. A resumed job has rank 0's on all ranks.

        Args:
            name: unique in this feature.
            start: its first value, a constant.
        """
        value = tf.get_static_value(start)
        if value is None:
            raise UserError(
                f"feature {self.name}: state {name} starts with a tensor that the step computes; "
                "give a constant"
            )
        return self._rank_state.variable(self.name, name, lambda: tf.constant(value))

    def begin(self, rank_state: RankState) -> None:
        """Is told what keeps its variables, before the first step."""
        self._rank_state = rank_state

    def summary(self) -> str:
        """What the log says of it at the start."""
        return self.name
