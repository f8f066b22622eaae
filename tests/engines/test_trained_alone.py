"""A model that was not given to ooodist.distribute is named when the program ends."""

from __future__ import annotations

import re
from pathlib import Path

from tests.jobs import run_job


def test_a_model_that_was_trained_alone_is_named() -> None:
    worker = Path(__file__).with_name("trained_alone_worker.py")
    job = run_job("collective", 2, worker)
    assert job.returncode == 0, job.stdout
    named = re.findall(r"model (\w+) was trained without the other workers", job.stdout)
    assert named == ["forgotten"]
