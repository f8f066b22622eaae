"""An optimizer whose state is divided: real workers with each engine, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import pytest

from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.job.compose import check_can_be_sharded
from tests.jobs import needs_built, run_checks, run_job

WORKER = Path(__file__).with_name("sharding_worker.py")
RESUMING_WORKER = Path(__file__).with_name("resuming_worker.py")
MEMORY_WORKER = Path(__file__).with_name("memory_worker.py")
NUMBERS = "numbers_are_those_of_an_optimizer_on_all_ranks"


@pytest.mark.parametrize("engine", ["collective", "horovod"])
def test_two_workers(engine: str) -> None:
    run_checks(engine, WORKER, [NUMBERS], seconds=600)


def test_memory_is_freed() -> None:
    """As the kernel says: half of three moments for two kernels of 71 MB.

    With Horovod: what TensorFlow's collectives have sent and received stays in the process, in
    amounts that differ from run to run.
    """
    needs_built("horovod")
    mean = {}
    for keeps in ("all", "part"):
        job = run_job("horovod", 2, MEMORY_WORKER, keeps)
        assert job.returncode == 0, job.stdout[-6000:]
        resident = re.findall(r"resident (\d+)", job.stdout)
        mean[keeps] = sum(map(int, resident)) / 2
    saved, expected = mean["all"] - mean["part"], 3 * 4 * 4200**2
    assert saved > 0.8 * expected, (saved, expected)


def test_checkpoints_are_resumed_by_any_number_of_workers(tmp_path: Path) -> None:
    """Those of an optimizer in parts and on all ranks, by both, with what low rank has lost."""
    for size, what in ((2, "save"), (1, "resume"), (2, "resume"), (4, "resume")):
        job = run_job("collective", size, RESUMING_WORKER, str(tmp_path), what)
        assert job.returncode == 0, f"{size} workers: {job.stdout[-6000:]}"


def test_byteps_is_refused_with_the_reason() -> None:
    class Byteps(LocalEngine):
        name, size = "byteps", 2

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(UserError, match=r"byteps.*its servers add up.*collective, horovod"):
        check_can_be_sharded(model, Byteps())


def test_four_workers() -> None:
    job = run_job("collective", 4, WORKER, NUMBERS, "each_rank_keeps_a_part_until_the_end")
    assert job.returncode == 0, job.stdout[-6000:]
