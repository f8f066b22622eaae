"""Why one cannot simply use Horovod's optimizer, or tf.distribute, with Keras 3."""

from __future__ import annotations

import re
from pathlib import Path

from tests.jobs import needs_built, run_job

WORKER = Path(__file__).with_name("hole_worker.py")


def checksums(which: str) -> set[str]:
    job = run_job("horovod", 2, WORKER, which, seconds=120)
    assert job.returncode == 0, job.stdout[-3000:]
    found = re.findall(r"rank (\d) weights (\d+)", job.stdout)
    assert sorted(rank for rank, _ in found) == ["0", "1"]
    return {checksum for _, checksum in found}


def test_horovods_own_optimizer_lets_the_ranks_drift_apart_and_ooodist_does_not() -> None:
    needs_built("horovod")
    # No error, no warning, and no exchange. Should this one day fail, Horovod or Keras has
    # mended it, and the README's words about it must go.
    assert len(checksums("horovod")) == 2
    assert len(checksums("ooodist")) == 1


def test_tensorflows_own_strategy_cannot_train_a_keras_3_model() -> None:
    # Should this one day fail, the README's words about it must go.
    job = run_job("collective", 2, WORKER.with_name("mirrored_worker.py"), seconds=120)
    assert job.returncode == 0, job.stdout[-3000:]
    assert len(re.findall(r"refused: Attempt to convert a value \(PerReplica", job.stdout)) == 2
