"""Two real workers: a step's forward pass runs while the step before is still being exchanged."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import ENGINES, needs_built, run_job

pytestmark = pytest.mark.timing("where a rank waits for a core, nothing overlaps")
WORKER = Path(__file__).with_name("overlap_worker.py")
STEPS_PER_EXECUTION = 4


@pytest.mark.parametrize("engine", ENGINES)
def test_forward_does_not_wait_for_the_last_exchange(engine: str, tmp_path: Path) -> None:
    needs_built(engine)
    job = run_job(engine, 2, WORKER, str(tmp_path), seconds=120)
    assert job.returncode == 0, job.stdout[-4000:]
    assert "shows 8 steps" in job.stdout

    steps = read_steps(tmp_path / "trace.json.gz")
    assert len(steps) == 2 * STEPS_PER_EXECUTION
    begun_before = []  # of each pair of steps of a launch, whether the second has
    for number, (step, following) in enumerate(itertools.pairwise(steps), start=1):
        last_exchange_end = max(e["ts"] + e["dur"] for e in step["exchange"])
        first_forward_start = min(e["ts"] for e in following["forward"])
        own = [e for e in step["exchange"] if "layer1/" in str(e["args"]["weights"])]
        assert len(own) == 2  # kernel and bias
        assert max(e["ts"] + e["dur"] for e in own) <= first_forward_start
        if number % STEPS_PER_EXECUTION:
            begun_before.append(first_forward_start < last_exchange_end)
        else:  # a launch ends with all its updates applied
            assert first_forward_start > last_exchange_end
    # Where a busy machine holds it up, a forward pass begins when all has long been exchanged.
    assert sum(begun_before) >= len(begun_before) / 2, job.stdout[-1000:]


def read_steps(path: Path) -> list[dict[str, list[dict[str, Any]]]]:
    """The slices of each step by track: ``forward``, ``exchange`` and so on."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    steps: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for event in events:
        if event["ph"] == "X":
            step = steps.setdefault(event["args"]["step"], {})
            step.setdefault(tracks[event["tid"]], []).append(event)
    return [steps[number] for number in sorted(steps)]
