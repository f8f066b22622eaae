"""Gradients that travel as rows: which do, and what that costs.

The gradient of an embedding has a row for each token of the batch, and the table has many more.
Instead of the sum of whole tables, all ranks can get the rows of all, with their numbers. With w
ranks, a table of D bytes and R bytes of rows on each rank, each rank sends::

    all-reduce of the table   2 (w - 1) / w * D
    all-gather of the rows        (w - 1) * R      as much as an all-reduce of w / 2 * R bytes

Costs count bytes of an all-reduce, so the rows count as w / 2 * R. They are exchanged alone and
whole, and are not carried to the next call, which takes dense gradients. The step decides by the
same rule (:mod:`ooodist.step.sending.rows`).
"""

from __future__ import annotations

from dataclasses import replace

from ooodist.engines.kinds import traits
from ooodist.planner.costs import Network, StepCosts, WeightCost

KIND = (
    "rows of "  # with the weight's name, it is the dtype, which no other has: no bucket, no chunk
)


def reduced_bytes(row_bytes: int, workers: int) -> int:
    """The bytes whose all-reduce sends as much as an all-gather of ``row_bytes`` each."""
    return -(-row_bytes * workers // 2)


def are_fewer(row_bytes: int, num_bytes: int, workers: int) -> bool:
    """Whether rows of ``row_bytes`` on each rank are fewer than a table of ``num_bytes``.

    What is counted is what each rank sends.
    """
    return workers > 1 and 0 < reduced_bytes(row_bytes, workers) < num_bytes


def travels_as_rows(weight: WeightCost) -> bool:
    """Whether the weight's costs are those of rows, as :func:`with_rows` makes them."""
    return weight.dtype.startswith(KIND)


def with_rows(costs: StepCosts, network: Network) -> StepCosts:
    """The costs if gradients travel as rows wherever these are fewer.

    Args:
        costs: those of dense exchanges.
        network: its engine, which may have no all-gather, and number of workers count.
    """
    if not traits(network.engine).gathers:
        return costs
    return replace(
        costs,
        weights=tuple(
            replace(
                weight,
                num_bytes=reduced_bytes(weight.row_bytes, network.workers),
                dtype=f"{KIND}{weight.name}",
            )
            if are_fewer(weight.row_bytes, weight.num_bytes, network.workers)
            else weight
            for weight in costs.weights
        ),
    )
