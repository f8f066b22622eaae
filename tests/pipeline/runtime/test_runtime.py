"""A pipeline over MPI trains as one process does, under every schedule."""

from __future__ import annotations

import pytest

from ooodist.planner.pipeline.named.kinds import KINDS
from tests.pipeline.jobs import run_mpi

EVERY = ["gpipe_2", *KINDS]


# tests/pipeline/training_cases.py has more kinds of models. Schedules that place stages alike share
# what is traced.
CASES = {
    2: [
        ("unet", 4, EVERY),
        ("residual", 4, ["zb_v"]),
        ("encoder_decoder", 4, ["1f1b", "zb_h2"]),
        ("attention_with_embeddings", 5, ["interleaved", "modulo"]),
    ],
    # Every schedule on four ranks, which share two cores here; with fewer micro-batches than ranks,
    # too.
    4: [
        ("encoder_decoder", 3, ["gpipe", "1f1b", "fast_forward", "zb_h1", "zb_h2"]),
        ("unet", 5, ["gpipe_2", "interleaved", "modulo", "push", "zb_v", "v_half", "dual_pipe_v"]),
    ],
}


@pytest.mark.parametrize("ranks", CASES)
def test_trains_as_one_process(ranks: int) -> None:
    """In one job, as to start one takes longer than most cases."""
    cases = CASES[ranks]
    named = [f"{model}:{number}:{','.join(schedules)}" for model, number, schedules in cases]
    job = run_mpi(ranks, "runtime_worker.py", *named, seconds=800)
    assert job.returncode == 0, job.stdout[-4000:]
    for model, _, schedules in cases:
        for schedule in schedules:
            for rank in range(ranks):
                assert f"held: {model}, {schedule}, rank {rank}, " in job.stdout


@pytest.mark.parametrize(
    ("ranks", "microbatches", "stages_of"),
    [
        (2, 3, {"interleaved": 4, "zb_v": 4, "auto": 2}),
        (3, 4, {"1f1b": 3, "zb_h1": 3, "modulo": 6}),
    ],
)
def test_the_first_stages_only_run_forward(
    ranks: int, microbatches: int, stages_of: dict[str, int]
) -> None:
    """With emulated work, and each stage as the first one that trains."""
    job = run_mpi(ranks, "forward_only_worker.py", microbatches, *stages_of, seconds=120)
    assert job.returncode == 0, job.stdout[-4000:]
    for schedule, stages in stages_of.items():
        for first in range(stages):
            for rank in range(ranks):
                assert f"held: {schedule} from {first}, rank {rank}" in job.stdout
