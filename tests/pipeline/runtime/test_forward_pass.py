"""Batches pass through all stages, over real MPI, whichever rank has which stage."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ooodist.pipeline.runtime.forward_pass import LAG, lags
from tests.pipeline.jobs import checks_in, run_mpi

CHECKS = checks_in("forward_pass_worker.py")


def test_three_ranks() -> None:
    """In one job, as to start one takes longer than the checks."""
    job = run_mpi(3, "forward_pass_worker.py", *CHECKS)
    assert job.returncode == 0, job.stdout[-4000:]
    for check in CHECKS:
        assert job.stdout.count(f"held: {check}") == 3, job.stdout


def test_there_are_checks() -> None:
    assert len(CHECKS) == 6


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_a_stage_lags_where_the_rank_changes(rank_of: list[int]) -> None:
    found = lags(rank_of)
    assert len(found) == len(rank_of)
    assert found[0] == 0
    for before, behind in itertools.pairwise(range(len(rank_of))):
        is_elsewhere = rank_of[before] != rank_of[behind]
        assert found[behind] - found[before] == LAG * is_elsewhere
