"""A pipeline over MPI trains as one process does, under every schedule."""

from __future__ import annotations

import pytest

from tests.pipeline.jobs import run_mpi

EVERY = [
    *("gpipe", "gpipe_2", "1f1b", "interleaved", "fast_forward"),
    *("modulo", "push", "zb_h1", "zb_h2", "zb_v"),
]


@pytest.mark.parametrize(
    ("ranks", "model", "microbatches", "schedules"),
    [
        (2, "unet", 4, EVERY),
        (2, "attention_with_embeddings", 5, ["1f1b", "modulo", "zb_v"]),
        (2, "convolution_with_batch_norm", 3, ["interleaved", "zb_h2"]),
        (2, "several_inputs_and_outputs", 2, ["zb_h1"]),
        (2, "regularised", 2, ["zb_h1"]),
        (4, "encoder_decoder", 2, ["1f1b", "push", "zb_h1"]),  # fewer micro-batches than ranks
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_trains_as_one_process(
    ranks: int, model: str, microbatches: int, schedules: list[str]
) -> None:
    job = run_mpi(ranks, "runtime_worker.py", model, microbatches, *schedules, seconds=300)
    assert job.returncode == 0, job.stdout
    for schedule in schedules:
        for rank in range(ranks):
            assert f"held: {schedule}, rank {rank}, " in job.stdout
