"""Gradients that travel as two thin matrices, with error feedback: PowerSGD.

A gradient of n x m is approximated by one of rank r, the same on all ranks. A step of the power
iteration, which begins where the last one has ended, finds its columns::

    M = gradient / ranks + residual                    of this rank
    P = M Q            summed over the ranks           n x r numbers
    P, orthonormal
    Q = M' P           summed over the ranks           m x r numbers
    P Q'               the mean gradient, about
    residual = M - P (M' P)'                           added in the next step

Both products are linear in M, so the sums over the ranks are those of the mean gradient, and any
engine that sums will do. What is lost is put off, as in :mod:`ooodist.step.sending.wire`. All of it
reads as many numbers as M has seven times, and writes them five times.

Source: Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for
distributed optimization", NeurIPS 2019, algorithms 1 and 2.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from ooodist.compat.attributes import replaced
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.graph.ops import num_bytes
from ooodist.graph.units import Gradient
from ooodist.planner.low_rank import takes
from ooodist.step.rank_state import RankState
from ooodist.step.sending.wire import ErrorFeedback
from ooodist.util.digest import digest

logger = logging.getLogger("ooodist")

Sent: TypeAlias = tf.Tensor | tf.IndexedSlices
Keep: TypeAlias = Callable[[], None]
ROUNDING = 1e-12  # of the products of unit vectors, at most
INDEPENDENT = 1e-3  # a unit vector that is so long without what others span depends on none
SMALLEST = 1e-90  # a squared length
OWNER = "low_rank"  # of the matrices Q in RankState: the same on all ranks


class Begun(NamedTuple):
    """A gradient of which P is being summed.

    Attributes:
        weight: whose gradient.
        gradient: this rank's own, for its shape and dtype.
        matrix: M, of shape (n, m).
        right: Q of the step before, of shape (m, r).
        left: this rank's part of P, of shape (n, r).
    """

    weight: str
    gradient: tf.Tensor
    matrix: tf.Tensor
    right: tf.Variable
    left: tf.Tensor


class Halfway(NamedTuple):
    """A gradient of which Q is being summed.

    Attributes:
        begun: what was known before.
        columns: P of all ranks, orthonormal, transposed: of shape (r, n).
        own: this rank's part of Q', of shape (r, m).
    """

    begun: Begun
    columns: tf.Tensor
    own: tf.Tensor


class LowRank:
    """Makes what travels of gradients, and gradients of what arrives.

    Args:
        state: keeps Q from one step to the next.
        feedback: keeps what is lost.
        workers: how many ranks there are.
        rank: r of all gradients for which it is worth it; None: a plan says which travel so.
        after: how many steps come before, or which share of the training's.

    Attributes:
        is_on: whether gradients travel so in the steps that are traced now.
    """

    def __init__(
        self,
        state: RankState,
        feedback: ErrorFeedback,
        workers: int,
        rank: int | None = None,
        after: float = 0,
    ) -> None:
        self.rank = rank
        self.is_on = workers == 1 or not after
        self._state = state
        self._feedback = feedback
        self._workers = workers
        self._after = after
        self._lengths: dict[str, tuple[tf.Variable, tf.Variable]] = {}
        self._is_logged = False
        self._keep: Callable[[Keep], None] = lambda keep: keep()

    def is_due(self, done: int, left: int | None) -> bool:
        """Whether enough steps have come before.

        Args:
            done: steps of the training so far.
            left: steps that are still to come; None if unknown.

        Raises:
            UserError: a share of the training is enough, but its length is not known.
        """
        after = self._after
        if isinstance(after, float):
            if left is None:
                raise UserError(
                    f"low_rank_after is {after}, a share of the training's steps, but their number "
                    "is not known; give a number of steps, as 500, or fit data of a known length"
                )
            after = round(after * (done + left))
        return done >= after

    def rank_of(self, gradient: Gradient) -> int | None:
        """The rank in which a gradient travels without a plan; None: it travels whole."""
        columns = columns_of(gradient)
        if self.rank is None or gradient is None or not columns:
            return None
        return self.rank if takes(gradient.shape.num_elements(), columns, self.rank) else None

    def begin(self, weight: str, gradient: tf.Tensor, rank: int) -> Begun:
        """What is to be summed first."""
        wide = tf.cast(gradient, tf.float32) if gradient.dtype.size < 4 else gradient
        kept = self._feedback.added(weight, wide / self._workers)
        matrix = tf.reshape(kept, [-1, columns_of(gradient)])
        right = self._right(weight, matrix, rank)
        return Begun(weight, gradient, matrix, right, matrix @ right)

    def go_on(self, begun: Begun, left: tf.Tensor) -> Halfway:
        """What is to be summed then.

        Args:
            begun: what :meth:`begin` has returned.
            left: P, summed over the ranks.
        """
        columns = orthonormal(left)
        return Halfway(begun, columns, columns @ begun.matrix)

    def end(self, halfway: Halfway, right: tf.Tensor) -> tf.Tensor:
        """About the mean gradient. What this rank's own has lost is kept, and Q, unless the
        gradient of some rank is not finite: then the next step goes on from those before it.

        Args:
            halfway: what :meth:`go_on` has returned.
            right: Q', summed over the ranks.
        """
        begun, columns, own = halfway
        shape = begun.gradient.shape
        lost = tf.reshape(begun.matrix - tf.matmul(columns, own, transpose_a=True), shape)
        sent = self._length_of(begun.weight, lost)
        # What is not finite in M or P, of any rank, is not finite here either.
        is_finite = tf.math.is_finite(tf.reduce_sum(right))

        def assign() -> None:
            self._feedback.residual(begun.weight, lost).assign(self._feedback.unscaled(lost))
            begun.right.assign(tf.transpose(right))
            # As long as P (M' P)', which is orthogonal to what is lost.
            length = tf.nn.l2_loss(self._feedback.unscaled(own))
            sent.assign(tf.cast(length, sent.dtype))

        def keep() -> None:
            tf.cond(is_finite, assign, lambda: None)

        self._keep(keep)
        mean = tf.matmul(columns, right, transpose_a=True)
        return tf.cast(tf.reshape(mean, shape), begun.gradient.dtype)

    def keeping(self, if_it_counts: Callable[[Keep], None]) -> AbstractContextManager[None]:
        """In this block, what keeps the state of a traced step is passed on: it may not count."""
        return replaced(self, _keep=if_it_counts)

    def error(self, engine: Engine) -> float:
        """Which share of the gradients of a step, the last one, has been put off: 0 to 1.

        It is ||M - P (M' P)'|| / ||M|| over all gradients in low rank of all ranks, which call it
        together; 0 if none has been sent since the last call.
        """
        halves = np.zeros(2)  # of the squares of both lengths
        for residual, sent in self._lengths.values():
            if half := float(sent):
                halves += float(tf.nn.l2_loss(residual)), half
                sent.assign(0.0)
        lost, kept = engine.all_reduce(halves, "sum")
        return math.sqrt(lost / (lost + kept)) if lost else 0.0

    def _length_of(self, weight: str, lost: tf.Tensor) -> tf.Variable:
        """Half of the squared length of what is sent of a gradient; with what is lost of it."""
        if weight not in self._lengths:
            residual = self._feedback.residual(weight, lost)
            with tf.init_scope():
                self._lengths[weight] = residual, tf.Variable(0.0, trainable=False)
        return self._lengths[weight][1]

    def log(self, gradients: Mapping[str, Sent], sent: Iterable[Sent], thin: int) -> None:
        """Logs once how much less travels.

        Args:
            gradients: all of a step, by weight.
            sent: what travels of them, in both exchanges.
            thin: how many of them travel as two thin matrices.
        """
        if not self._is_logged:
            self._is_logged = True
            logger.info(
                "low rank: %d of %d gradients travel as two thin matrices, %.2f MB in place of "
                "%.2f",
                thin,
                len(gradients),
                sum(map(num_bytes, sent)) / 1e6,
                sum(map(num_bytes, gradients.values())) / 1e6,
            )

    def _right(self, weight: str, matrix: tf.Tensor, rank: int) -> tf.Variable:
        shape, dtype = [matrix.shape[1], rank], matrix.dtype
        seed = [int.from_bytes(digest(weight)[at : at + 4], "big") >> 1 for at in (0, 4)]
        return self._state.variable(
            OWNER, f"{weight}:{rank}", lambda: tf.random.stateless_normal(shape, seed, dtype=dtype)
        )


def orthonormal(columns: tf.Tensor) -> tf.Tensor:
    """Rows that are orthonormal and span what these columns span.

    They are those of Gram and Schmidt, found by a Cholesky decomposition of the columns' products,
    which takes a third of the time of a QR decomposition. The latter is left with columns that
    nearly depend on each other, are zero, or are not finite.

    Args:
        columns: of shape (n, r), in 32 or 64 bits.

    Returns:
        the rows, of shape (r, n).
    """
    unit = tf.math.l2_normalize(tf.cast(columns, tf.float64), 0, epsilon=SMALLEST)
    products = tf.matmul(unit, unit, transpose_a=True)
    products = tf.where(tf.math.is_finite(products), products, 0.0)
    # With more on the diagonal than sums are rounded by, it never fails.
    lower = tf.linalg.cholesky(products + ROUNDING * np.eye(columns.shape[1]))

    def of_products() -> tf.Tensor:
        return tf.cast(tf.linalg.triangular_solve(lower, tf.transpose(unit)), columns.dtype)

    def of_columns() -> tf.Tensor:
        return tf.cast(tf.transpose(tf.linalg.qr(unit).q), columns.dtype)

    # The lengths of the columns, once they are orthogonal to those before them.
    independent = tf.reduce_min(tf.linalg.diag_part(lower)) > INDEPENDENT
    return tf.cond(independent, of_products, of_columns)


def columns_of(gradient: Gradient) -> int:
    """m of a gradient as a matrix, which the kernel of a convolution is, too; 0 if it is none."""
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return 0
    shape = gradient.shape
    if not gradient.dtype.is_floating or not shape.is_fully_defined() or shape.rank < 2:
        return 0
    return int(shape[-1])
