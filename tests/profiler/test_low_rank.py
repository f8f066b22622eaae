"""What low rank costs, as measured: within the time that it took to find out."""

from __future__ import annotations

import time

import pytest

from ooodist.planner.costs import LowRankCosts, WeightCost
from ooodist.planner.low_rank import RANKS, thin_seconds
from ooodist.profiler.low_rank import MOST_BYTES, REPEATS, measure_low_rank


def test_of_what_cannot_travel_so_nothing_is_measured() -> None:
    vector, small = WeightCost("vector", 1 << 20), WeightCost("small", 4 * 4 * 4, columns=4)
    words = WeightCost("words", 1 << 20, "string", columns=64)
    assert measure_low_rank([vector, small, words]) == LowRankCosts()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_measured_was_spent(dtype: str) -> None:
    kernel = WeightCost("kernel", 1 << 20, dtype, columns=256)
    began = time.perf_counter()
    costs = measure_low_rank([kernel, WeightCost("bias", 1024, dtype)])
    took = time.perf_counter() - began
    for rank in (RANKS[0], RANKS[-1]):
        seconds = thin_seconds(kernel, rank, costs)
        assert min(seconds) > 0
        assert REPEATS * sum(seconds) < took


def test_huge_ones_are_measured_in_part() -> None:
    costs = measure_low_rank(WeightCost(f"w{n}", 100 * MOST_BYTES, columns=1024) for n in range(9))
    assert costs.before > 0
