"""Checkpoints that all ranks write together: whole, or not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.parallel_write import spread
from ooodist.errors import UserError
from ooodist.util.replacing import INCOMPLETE_PREFIX
from tests.checkpoint.examples import make_model, state_of, write_parts
from tests.checkpoint.unseeing_worker import CANNOT
from tests.jobs import ROOT
from tests.pipeline.jobs import run_python

HERE = Path(__file__).parent


def test_ranks_write_and_read_their_own(tmp_path: Path) -> None:
    job = run_python(3, HERE / "worker.py", tmp_path, seconds=200)
    assert job.returncode == 0, job.stdout
    for rank in range(3):
        assert f"rank {rank} is done" in job.stdout


def test_an_output_that_one_rank_does_not_see(tmp_path: Path) -> None:
    job = run_python(2, HERE / "unseeing_worker.py", tmp_path, seconds=200)
    if job.returncode == CANNOT:
        pytest.skip("only root can hide a folder from a process")
    assert job.returncode == 0, job.stdout
    for rank in (0, 1):
        assert (
            f"rank {rank}: rank 1: rank 1 does not see the folder {tmp_path}, which rank 0 sees; "
            "a pipeline's output must be on a disk that all ranks see"
        ) in job.stdout
    assert list(tmp_path.iterdir()) == []


@given(
    sizes=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 3)), max_size=30),
    alone=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 15)), max_size=10),
    replicas=st.integers(1, 4),
)
def test_replicas_share_the_work(
    sizes: list[tuple[int, int]], alone: list[tuple[int, int]], replicas: int
) -> None:
    """What one rank alone has is written by it; what peers have evens that out."""
    of_all = [
        (SimpleNamespace(shape=(size,)), range(position, 4 * replicas, 4))
        for size, position in sizes
    ]
    of_one = [(SimpleNamespace(shape=(size,)), (rank % (4 * replicas),)) for size, rank in alone]
    writers = spread([*of_all, *of_one])
    assert writers.keys() == {id(variable) for variable, _ in (*of_all, *of_one)}
    load = np.zeros(4 * replicas, int)
    for variable, ranks in of_one:
        assert (writers[id(variable)],) == ranks
        load[ranks] += variable.shape[0]
    before = load.copy()
    for variable, those in of_all:
        assert writers[id(variable)] in those
        load[writers[id(variable)]] += variable.shape[0]
    for position in range(4):
        own = [variable.shape[0] for variable, those in of_all if those.start == position]
        peers = slice(position, None, 4)
        assert np.ptp(load[peers]) <= max(np.ptp(before[peers]), max(own, default=0))


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return make_model()


def test_weights_that_are_not_finite_are_not_written(model: keras.Model, tmp_path: Path) -> None:
    write_parts(tmp_path / "a", model)
    kernel = model.get_layer("head").kernel
    healthy = kernel.numpy()
    kernel.assign(np.where(np.arange(healthy.size).reshape(healthy.shape) == 0, np.nan, healthy))
    message = f"weight {kernel.path} is not finite at 1 of {healthy.size} places"
    try:
        with pytest.raises(UserError, match=message):
            write_parts(tmp_path / "a", model, state=state_of(9))
    finally:
        kernel.assign(healthy)  # the model is shared by the tests of this file
    assert folders.read_state(tmp_path / "a").epoch == 3
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_where_nothing_can_be_written(model: keras.Model, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"checkpoint .*/nowhere/a cannot be written: .*No such"):
        write_parts(tmp_path / "nowhere" / "a", model)


SAVES_FOR_EVER = """
import itertools, sys
from pathlib import Path
from ooodist.checkpoint import folder as folders
from tests.checkpoint.examples import make_model, state_of, write_parts

model = make_model()
for epoch in itertools.count(1):
    write_parts(Path(sys.argv[1]) / folders.parts_name(epoch), model, state=state_of(epoch))
    folders.prune(Path(sys.argv[1]), keep=1)
"""


def test_a_kill_while_saving_leaves_the_last_good_one(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SAVES_FOR_EVER, str(tmp_path)], cwd=ROOT, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while not folders.checkpoints(tmp_path) or not any(
            tmp_path.glob(f"{INCOMPLETE_PREFIX}*/part*")
        ):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    path, state = folders.latest(tmp_path)
    assert path.name == folders.parts_name(state.epoch)
    folders.prune(tmp_path, keep=1)
    assert [left.name for left in tmp_path.iterdir()] == [path.name]
