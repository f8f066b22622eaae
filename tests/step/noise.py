"""A feature as a program might add it, in one file: gradient noise (Neelakantan et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

import ooodist


class GradientNoise(ooodist.Feature):
    refuses = {"wire": "16 bits would round the noise away; take wire: float32"}  # noqa: RUF012

    def __init__(self, stddev: float, decay: float = 0.55) -> None:
        self.stddev = stddev
        self.decay = decay

    def gradients(self, names: Sequence[str], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        steps = self.state("steps", tf.zeros([], tf.int32))
        step = steps.assign_add(1)
        stddev = self.stddev / (1.0 + tf.cast(step, tf.float32)) ** self.decay
        return [
            gradient + stddev * tf.random.stateless_normal(gradient.shape, [step, number])
            for number, gradient in enumerate(gradients)
        ]

    def summary(self) -> str:
        return f"gradient noise of {self.stddev:g}"
