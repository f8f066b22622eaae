"""The registry of named schedules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.pipeline.check import check
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.named.kinds import KINDS
from ooodist.planner.pipeline.simulate import peak_bytes, simulate_pipeline
from tests.planner.pipelines import stage_costs


@pytest.mark.parametrize("name", KINDS)
@given(st.data(), st.integers(1, 5), st.integers(1, 9))
def test_every_name_makes_schedules_that_can_run(
    name: str, data: st.DataObject, ranks: int, microbatches: int
) -> None:
    """Without a limit that some cannot keep to."""
    kind = KINDS[name]
    chunks = data.draw(st.integers(1, 3)) if kind.other_chunks else kind.chunks
    costs = data.draw(stage_costs(ranks * chunks))
    for schedule in kind.variants(ranks, microbatches, chunks, costs):
        assert schedule.name == name
        assert schedule.microbatches == microbatches
        assert schedule.rank_of == kind.rank_of(ranks, chunks)
        check(schedule)


@given(stage_costs(6), st.integers(1, 9), st.integers(0, 60))
def test_of_several_variants_the_fastest_that_fits_is_made(
    costs: PipelineCosts, microbatches: int, limit: int
) -> None:
    kind = KINDS["zb_v_auto"]
    costs = replace(costs, memory_limit=limit)
    made = kind.make(3, microbatches, 2, costs)
    fitting = [
        schedule
        for schedule in kind.variants(3, microbatches, 2, costs)
        if max(peak_bytes(schedule, costs)) <= limit
    ]
    if fitting:
        assert max(peak_bytes(made, costs)) <= limit
        seconds = simulate_pipeline(made, costs).step_seconds
        assert all(seconds <= simulate_pipeline(s, costs).step_seconds for s in fitting)
