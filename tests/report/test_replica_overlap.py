"""How much of the sums over replicas is hidden: the part in which the rank computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.pipeline.actions import parse_action
from ooodist.planner.pipeline.simulate import Exchange, PipelineTimeline, Run
from ooodist.report.overlap import replica_overlap, sums_line

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=5)


def timeline(*ranks: tuple[list[tuple[int, int]], list[tuple[int, int]]]) -> PipelineTimeline:
    """A step, with actions and sums of each rank, as (start, end)."""
    return PipelineTimeline(
        tuple(tuple(Run(parse_action("0W0"), *span) for span in runs) for runs, _ in ranks),
        peak_bytes=(0,) * len(ranks),
        updates=(0.0,) * len(ranks),
        exchanges=tuple(tuple(Exchange(0, *span) for span in sums) for _, sums in ranks),
    )


def test_hidden_is_what_runs_beside_an_action() -> None:
    found = replica_overlap([timeline(([(0, 4), (5, 8)], [(3, 6), (7, 12)]))])
    assert found.exchange == 3 + 5
    assert found.hidden == (1 + 1) + 1
    assert found.share == 3 / 8


def test_sums_in_transit_together_count_once() -> None:
    assert replica_overlap([timeline(([(0, 10)], [(2, 6), (4, 8), (5, 6)]))]).exchange == 6


def test_what_another_rank_computes_hides_nothing() -> None:
    """And it is the mean over ranks and steps."""
    step = timeline(([(0, 2)], [(2, 6)]), ([(0, 6)], [(2, 6)]))
    found = replica_overlap([step, step])
    assert (found.exchange, found.hidden) == (4, 2)
    without = timeline(([(0, 2)], []), ([(0, 2)], []))
    assert replica_overlap([step, without]).exchange == 2
    assert replica_overlap([without]).share == 1


@given(SPANS, SPANS)
def test_of_whole_seconds_it_is_their_number(
    runs: list[tuple[int, int]], sums: list[tuple[int, int]]
) -> None:
    def seconds(spans: list[tuple[int, int]]) -> set[int]:
        return {second for start, length in spans for second in range(start, start + length)}

    both = [[(start, start + length) for start, length in spans] for spans in (runs, sums)]
    found = replica_overlap([timeline((both[0], both[1]))])
    assert found.exchange == len(seconds(sums))
    assert found.hidden == len(seconds(runs) & seconds(sums))


def test_the_line() -> None:
    found = replica_overlap([timeline(([(0, 3)], [(2, 6)]))])
    assert sums_line(found) == "replica sums: 4000.0 ms a step, 25% hidden behind computing"
    assert found.share == pytest.approx(0.25)
