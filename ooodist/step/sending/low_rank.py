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
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from ooodist.graph.ops import num_bytes
from ooodist.step.rank_state import RankState
from ooodist.step.sending.wire import ErrorFeedback
from ooodist.util.digest import digest

logger = logging.getLogger("ooodist")

Sent: TypeAlias = tf.Tensor | tf.IndexedSlices
Exchange: TypeAlias = Callable[[Mapping[str, Sent]], dict[str, tf.Tensor]]

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
        self._is_logged = False

    def means(self, gradients: Mapping[str, Sent], exchanged: Exchange) -> dict[str, tf.Tensor]:
        """About the mean of each gradient, whole where it does not travel in low rank.

        Args:
            gradients: of this rank, by weight.
            exchanged: returns the means over the ranks of what it is given.
        """
        matrices = {
            name: self.matrix(name, gradient)
            for name, gradient in gradients.items()
            if self.takes(gradient)
        }
        sent = {name: self.left(name, matrix) for name, matrix in matrices.items()}
        means = exchanged({**gradients, **sent})
        columns = {name: orthonormal(means[name]) for name in matrices}
        own = {name: right_of(matrix, columns[name]) for name, matrix in matrices.items()}
        right = exchanged(own)
        self._log(gradients, [*({**gradients, **sent}).values(), *own.values()], len(matrices))
        for name, matrix in matrices.items():
            parts = matrix, columns[name], own[name], right[name]
            means[name] = self.mean(name, gradients[name], *parts)
        return means

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

    def matrix(self, weight: str, gradient: tf.Tensor) -> tf.Tensor:
        """M, of shape (n, m): this rank's gradient, with what earlier ones have lost."""
        wide = tf.cast(gradient, tf.float32) if gradient.dtype.size < 4 else gradient
        return tf.reshape(self._feedback.added(weight, wide), _sizes(gradient))

    def left(self, weight: str, matrix: tf.Tensor) -> tf.Tensor:
        """This rank's part of P, of shape (n, r); the mean over the ranks is what counts."""
        return matrix @ self._right(weight, matrix)

    def mean(
        self,
        weight: str,
        gradient: tf.Tensor,
        matrix: tf.Tensor,
        columns: tf.Tensor,
        own: tf.Tensor,
        right: tf.Tensor,
    ) -> tf.Tensor:
        """About the mean gradient; what this rank's own has lost is kept, and Q for the next step.

        Args:
            weight: whose gradient.
            gradient: this rank's own, for its shape and dtype.
            matrix: this rank's M.
            columns: the mean of P, orthonormal.
            own: this rank's part of Q, of shape (m, r).
            right: the mean of Q.
        """
        lost = matrix - tf.matmul(columns, own, transpose_b=True)
        self._feedback.keep(weight, tf.reshape(lost, gradient.shape))
        self._right(weight, matrix).assign(right)
        mean = tf.matmul(columns, right, transpose_b=True)
        return tf.cast(tf.reshape(mean, gradient.shape), gradient.dtype)

    def _log(self, gradients: Mapping[str, Sent], sent: Sequence[Sent], thin: int) -> None:
        """Logs once how much less travels."""
        if not self._is_logged:
            self._is_logged = True
            logger.info(
                "low rank %d: %d of %d gradients travel as two thin matrices, %.2f MB in place of "
                "%.2f",
                self.rank,
                thin,
                len(gradients),
                sum(map(num_bytes, sent)) / 1e6,
                sum(map(num_bytes, gradients.values())) / 1e6,
            )

    def _right(self, weight: str, matrix: tf.Tensor) -> tf.Variable:
        shape, dtype = [matrix.shape[1], self.rank], matrix.dtype
        seed = [int.from_bytes(digest(weight)[at : at + 4], "big") >> 1 for at in (0, 4)]
        return self._state.variable(
            OWNER, weight, lambda: tf.random.stateless_normal(shape, seed, dtype=dtype)
        )


def orthonormal(left: tf.Tensor) -> tf.Tensor:
    """Orthonormal columns that span those of P."""
    columns, _ = tf.linalg.qr(left)
    return columns


def right_of(matrix: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """A rank's part of Q, of shape (m, r)."""
    return tf.matmul(matrix, columns, transpose_a=True)


def _sizes(gradient: tf.Tensor) -> tuple[int, int]:
    """n and m of a gradient's matrix."""
    columns = int(gradient.shape[-1])
    return int(gradient.shape.num_elements()) // max(1, columns), columns
