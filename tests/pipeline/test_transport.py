"""Messages over real MPI: all arrive, in order, while ranks compute; who waits in vain says so."""

from __future__ import annotations

import pytest

from tests.pipeline.jobs import HERE, run_mpi

CHECKS = [
    line.removeprefix("def ").partition("(")[0]
    for line in (HERE / "transport_worker.py").read_text(encoding="utf-8").splitlines()
    if line.startswith("def check_")
]


@pytest.mark.parametrize("check", CHECKS)
def test_two_ranks(check: str) -> None:
    job = run_mpi(2, "transport_worker.py", check)
    assert job.returncode == 0, job.stdout
    assert job.stdout.count(f"held: {check}") == 2
    if check == "check_a_missing_message_is_named":
        assert "rank 0 waits at 1RECV_B3 since 2 s: the message is not sent by rank 1" in job.stdout
        assert "raise stall_limit (2 s)" in job.stdout


def test_there_are_checks() -> None:
    assert len(CHECKS) == 8
