"""Gradients in low rank, in the planner: few bytes, in two exchanges one after the other.

A gradient of n x m travels as two matrices, of n x r and of m x r (step/sending/low_rank.py). In
simulation the second exchange is handed over when the first has arrived and the compute stream has
paid for the products in between. A residual of the whole gradient stays in memory::

    compute    dW      (M Q)               P orthonormal, M' P               P Q', update
    lane          [ P: n x r ]                                [ Q: m x r ]
"""

from __future__ import annotations

from dataclasses import replace

from ooodist.planner.costs import ITEM_BYTES, LowRankCosts, StepCosts, WeightCost

# The lowest rank that a plan chooses by itself. On digits, rank 2 has lost 0.6 points of accuracy,
# and rank 4 has lost 0.1, which is less than seeds differ by (expr/slow_networks).
LEAST_RANK = 4
RANKS = (LEAST_RANK, 8, 16, 32)  # those that a plan chooses from
LEAST_SAVED = 2.0  # a gradient travels in low rank if that is so many times fewer numbers


def takes(num_elements: int, columns: int, rank: int) -> bool:
    """Whether a gradient of so many elements, in so many columns, is worth sending in low rank."""
    if columns < 1 or num_elements < 1:
        return False
    n, m = num_elements // columns, columns
    return LEAST_SAVED * rank * (n + m) <= n * m


def can_be_thin(weight: WeightCost, rank: int) -> bool:
    """Whether a weight's gradient can travel in this rank."""
    item_bytes = ITEM_BYTES.get(weight.dtype)
    return item_bytes is not None and takes(weight.num_bytes // item_bytes, weight.columns, rank)


def thin_bytes(weight: WeightCost, rank: int) -> tuple[int, int]:
    """The bytes of the first and of the second exchange. Products are made in 32 bits or more."""
    item_bytes = max(4, ITEM_BYTES[weight.dtype])
    rows = weight.num_bytes // ITEM_BYTES[weight.dtype] // weight.columns
    return rows * rank * item_bytes, weight.columns * rank * item_bytes


def thin_seconds(weight: WeightCost, rank: int, costs: LowRankCosts) -> tuple[float, float]:
    """CPU seconds besides those of exchanging: until the second exchange begins, and after it."""
    before = costs.before * weight.num_bytes + costs.orthonormal * thin_bytes(weight, rank)[0]
    return before, costs.after * weight.num_bytes


def residual_bytes(weight: WeightCost) -> int:
    """The bytes of what is kept of a weight whose gradient travels in low rank."""
    return weight.num_bytes // ITEM_BYTES[weight.dtype] * max(4, ITEM_BYTES[weight.dtype])


def thinned(costs: StepCosts, rank: int) -> StepCosts:
    """Costs in which all that can travels in this rank, for plans that say nothing of it.

    A search finds plans for them that are about as fast in ``costs`` once they say so: here both
    exchanges are one, and the products are a part of the update.
    """
    return replace(
        costs,
        weights=tuple(_thinned(weight, rank, costs.low_rank) for weight in costs.weights),
        base_bytes=costs.base_bytes
        + sum(residual_bytes(weight) for weight in costs.weights if can_be_thin(weight, rank)),
    )


def at_least(costs: StepCosts, rank: int) -> StepCosts:
    """Costs for a lower bound over all plans with no lower rank: the products are free."""
    return replace(
        costs,
        weights=tuple(
            replace(weight, num_bytes=min(weight.num_bytes, sum(thin_bytes(weight, rank))))
            if can_be_thin(weight, rank)
            else weight
            for weight in costs.weights
        ),
    )


def _thinned(weight: WeightCost, rank: int, costs: LowRankCosts) -> WeightCost:
    if not can_be_thin(weight, rank):
        return weight
    return replace(
        weight,
        num_bytes=sum(thin_bytes(weight, rank)),
        # No chunk, and no bucket with others: see exchanges.py.
        dtype=f"{weight.dtype} in rank {rank}",
        update_seconds=weight.update_seconds + sum(thin_seconds(weight, rank, costs)),
    )
