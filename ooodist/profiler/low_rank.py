"""Measures what it takes to send a model's gradients in low rank, besides exchanging them.

One rank sends the largest to itself, in the lowest and in the highest rank that plans choose from.
What takes longer in the higher one, until the second exchange, is making P orthonormal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import tensorflow as tf

from ooodist.engines.devices import seconds_of
from ooodist.planner.costs import ITEM_BYTES, LowRankCosts, WeightCost
from ooodist.planner.low_rank import RANKS, can_be_thin, thin_bytes
from ooodist.profiler.compute import undisturbed
from ooodist.step.rank_state import RankState
from ooodist.step.sending.low_rank import Halfway, LowRank
from ooodist.step.sending.wire import ErrorFeedback

MOST_GRADIENTS = 4
MOST_BYTES = 16 << 20  # of all of them; of a larger one, some rows
REPEATS = 5


def measure_low_rank(weights: Iterable[WeightCost]) -> LowRankCosts:
    """The costs by which any of these weights' gradients is sent in low rank; it takes 0.5 s.

    Returns:
        no costs if none of them can be.
    """
    chosen = _largest(weights)
    if not chosen:
        return LowRankCosts()
    ranks = [rank for rank in RANKS if all(can_be_thin(weight, rank) for weight in chosen)]
    low, high = (sum(thin_bytes(w, rank)[0] for w in chosen) for rank in (ranks[0], ranks[-1]))
    (before, after), (longer, _) = (_seconds(chosen, rank) for rank in (ranks[0], ranks[-1]))
    orthonormal = max(0.0, longer - before) / (high - low) if high > low else 0.0
    num_bytes = sum(weight.num_bytes for weight in chosen)
    return LowRankCosts(
        max(0.0, before - orthonormal * low) / num_bytes, orthonormal, after / num_bytes
    )


def _largest(weights: Iterable[WeightCost]) -> list[WeightCost]:
    """Some of the weights that can travel so."""
    chosen: list[WeightCost] = []
    room = MOST_BYTES
    for weight in sorted(weights, key=lambda weight: -weight.num_bytes):
        if not can_be_thin(weight, RANKS[0]) or len(chosen) == MOST_GRADIENTS:
            continue
        row_bytes = weight.columns * ITEM_BYTES[weight.dtype]
        part = replace(weight, num_bytes=min(weight.num_bytes, room) // row_bytes * row_bytes)
        if can_be_thin(part, RANKS[0]):
            chosen.append(part)
            room -= part.num_bytes
    return chosen


def _seconds(weights: Sequence[WeightCost], rank: int) -> tuple[float, float]:
    """Seconds until the second exchange of all these gradients, and after it."""
    state = RankState()
    low_rank = LowRank(state, ErrorFeedback(state=state), workers=2)
    gradients = {}
    for weight in weights:
        shape = weight.num_bytes // ITEM_BYTES[weight.dtype] // weight.columns, weight.columns
        numbers = tf.random.stateless_normal(shape, (0, 0))
        gradients[weight.name] = tf.cast(numbers, weight.dtype)

    halves: list[Halfway] = []  # as they were traced

    def until_second_exchange() -> list[tuple[tf.Tensor, ...]]:
        begun = [low_rank.begin(name, each, rank) for name, each in gradients.items()]
        halves[:] = [low_rank.go_on(each, each.left) for each in begun]
        return [(each.begun.matrix, each.begun.left, each.columns, each.own) for each in halves]

    def rest(parts: list[tuple[tf.Tensor, ...]]) -> list[tf.Tensor]:
        found = []
        for traced, (matrix, left, columns, own) in zip(halves, parts, strict=True):
            gradient = gradients[traced.begun.weight]
            begun = traced.begun._replace(gradient=gradient, matrix=matrix, left=left)
            found.append(low_rank.end(Halfway(begun, columns, own), own))
        return found

    first = tf.function(until_second_exchange, autograph=False)
    parts = first()
    second = partial(tf.function(rest, autograph=False), parts)
    second()
    timed = [(seconds_of(first), seconds_of(second)) for _ in range(REPEATS)]
    before, after = map(undisturbed, zip(*timed, strict=True))
    return before, after
