"""A pipeline over MPI trains as one process does, under every schedule."""

from __future__ import annotations

import pytest

from tests.pipeline.jobs import run_mpi

EVERY = [
    *("gpipe", "gpipe_2", "1f1b", "interleaved", "fast_forward"),
    *("modulo", "push", "zb_h1", "zb_h2", "zb_v"),
]


CASES = {
    2: [
        ("unet", 4, EVERY),
        ("residual", 4, EVERY[1::3]),
        ("encoder_decoder", 4, EVERY[2::3]),
        ("attention_with_embeddings", 5, ["1f1b", "modulo", "zb_v"]),
        ("convolution_with_batch_norm", 3, ["interleaved", "zb_h2"]),
        ("several_inputs_and_outputs", 2, ["zb_h1"]),
        ("regularized", 2, ["zb_h1"]),
    ],
    # Each schedule with one of the models on four ranks, which share two cores here; with fewer
    # micro-batches than ranks, too.
    4: [
        ("residual", 4, EVERY[::3]),
        ("encoder_decoder", 3, EVERY[1::3]),
        ("unet", 5, EVERY[2::3]),
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
