"""Gradients that travel as two thin matrices, with error feedback: PowerSGD.

A gradient of n x m, M, is approximated by one of rank r, the same on all ranks. A step of the power
iteration, which begins where the last one has ended, finds its columns::

    M = gradient + residual                            of this rank
    P = M Q            summed over the ranks           n x r numbers
    P, orthonormal
    Q = M' P           summed over the ranks           m x r numbers
    P Q'               the mean gradient, about
    residual = M - P (M' P)'                           added in the next step

Both products are linear in M, so the sums over the ranks are those of the mean gradient, and any
engine that sums will do. What is lost is put off, as in :mod:`ooodist.step.sending.wire`.

Source: Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for
distributed optimization", NeurIPS 2019, algorithms 1 and 2.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.graph.ops import num_bytes
from ooodist.step.rank_state import RankState
from ooodist.step.sending.wire import ErrorFeedback
from ooodist.util.digest import digest

logger = logging.getLogger("ooodist")

OWNER = "low_rank"  # of the matrices Q in RankState: the same on all ranks
LEAST_SAVED = 2.0  # a gradient travels in low rank if that is so many times fewer numbers


class LowRank:
    """Makes what travels of gradients, and gradients of what arrives.

    Args:
        rank: r.
        state: keeps Q from one step to the next.
        feedback: keeps what is lost.
    """

    def __init__(self, rank: int, state: RankState, feedback: ErrorFeedback) -> None:
        self.rank = rank
        self._state = state
        self._feedback = feedback
        self._matrices: dict[str, tf.Tensor] = {}  # of the step that is being traced
        self._columns: dict[str, tf.Tensor] = {}
        self._is_logged = False

    def takes(self, gradient: tf.Tensor | tf.IndexedSlices) -> bool:
        """Whether a gradient travels in low rank: float matrices for which it is worth it.

        The kernel of a convolution is a matrix of its inputs times its outputs.
        """
        if isinstance(gradient, tf.IndexedSlices) or not gradient.dtype.is_floating:
            return False
        shape = gradient.shape
        if shape.rank is None or shape.rank < 2 or not shape.is_fully_defined():
            return False
        n, m = _sizes(gradient)
        return LEAST_SAVED * self.rank * (n + m) <= n * m

    def first(self, weight: str, gradient: tf.Tensor) -> tf.Tensor:
        """This rank's part of P, of shape (n, r); the mean over the ranks is what counts."""
        wide = tf.cast(gradient, tf.float32) if gradient.dtype.size < 4 else gradient
        matrix = tf.reshape(self._feedback.added(weight, wide), _sizes(gradient))
        self._matrices[weight] = matrix
        return matrix @ self._right(weight, matrix)

    def second(self, weight: str, left: tf.Tensor) -> tf.Tensor:
        """This rank's part of Q, of shape (m, r).

        Args:
            weight: whose gradient.
            left: the mean of P.
        """
        self._columns[weight], _ = tf.linalg.qr(left)
        return tf.matmul(self._matrices[weight], self._columns[weight], transpose_a=True)

    def mean(self, weight: str, gradient: tf.Tensor, own: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        """About the mean gradient; what this rank's own has lost is kept.

        Args:
            weight: whose gradient.
            gradient: this rank's own, for its shape and dtype.
            own: this rank's part of Q.
            right: the mean of Q.
        """
        matrix, columns = self._matrices.pop(weight), self._columns.pop(weight)
        lost = matrix - tf.matmul(columns, own, transpose_b=True)
        self._feedback.keep(weight, tf.reshape(lost, gradient.shape))
        self._right(weight, matrix).assign(right)
        mean = tf.matmul(columns, right, transpose_b=True)
        return tf.cast(tf.reshape(mean, gradient.shape), gradient.dtype)

    def log(
        self,
        engine: Engine,
        gradients: Mapping[str, tf.Tensor | tf.IndexedSlices],
        sent: Mapping[str, tf.Tensor | tf.IndexedSlices],
    ) -> None:
        """Logs once, on rank 0, how much less travels.

        Args:
            engine: connects the ranks.
            gradients: all of a step, by weight.
            sent: what travels of them first.
        """
        if self._is_logged or engine.rank:
            return
        self._is_logged = True
        thin = [name for name, gradient in gradients.items() if self.takes(gradient)]
        right = sum(4 * self.rank * _sizes(gradients[name])[1] for name in thin)
        logger.info(
            "low rank %d: %d of %d gradients travel as two thin matrices, %.2f MB in place of %.2f",
            self.rank,
            len(thin),
            len(gradients),
            (sum(map(num_bytes, sent.values())) + right) / 1e6,
            sum(map(num_bytes, gradients.values())) / 1e6,
        )

    def _right(self, weight: str, matrix: tf.Tensor) -> tf.Variable:
        shape, dtype = [matrix.shape[1], self.rank], matrix.dtype
        seed = [int.from_bytes(digest(weight)[at : at + 4], "big") >> 1 for at in (0, 4)]
        return self._state.variable(
            OWNER, weight, lambda: tf.random.stateless_normal(shape, seed, dtype=dtype)
        )


def _sizes(gradient: tf.Tensor) -> tuple[int, int]:
    """n and m of a gradient's matrix."""
    columns = int(gradient.shape[-1])
    return int(gradient.shape.num_elements()) // max(1, columns), columns
