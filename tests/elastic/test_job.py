"""``python -m ooodist.train`` with ``elastic``, on two workers and as a pipeline of two stages.

A first run selects once and goes on with that. Another one goes on from its first checkpoint, and
must do the same: what is selected, the counts and the importance come back, though it measures what
things cost anew.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from ooodist.checkpoint import convert
from ooodist.checkpoint import folder as folders
from tests.fork_server import fast_python
from tests.jobs import ROOT
from tests.pipeline.jobs import run_python

JOB = """\
model: {name: mlp, layers: [512, 512, 512]}
data: {name: digits}
batch: 64
epochs: 2
steps_per_epoch: 5
seed: 7
optimizer: {name: adam, learning_rate: 0.001}
elastic: {rho: 0.9, renew: 100 steps, batches: 2}
report: {tensorboard: false}
"""
WAYS = {
    "workers": "engine: collective\n",
    "pipeline": "parallel: {pipeline: 2, microbatches: 4, schedule: zb_h1}\ntimeout: 20\n",
}
# As ``python -m ooodist.train``, with costs of exchanges that are not measured: that would take as
# long as all else together, and is no part of this.
PROGRAM = """if True:
    import sys
    from ooodist.planner.costs import Network
    from ooodist.profiler import storage
    from ooodist.train import main
    storage.measure_network = lambda engine, *_: Network(
        engine.name, engine.size, latency=1e-4, seconds_per_byte=1e-8
    )
    storage.still_holds = lambda *_: True
    sys.exit(main(sys.argv[1:]))
"""
ERROR_CODE = 2


@dataclass(frozen=True)
class Way:
    """How ranks share the work, and the output of the first run."""

    name: str
    folder: Path
    printed: str


def run(
    way: str, folder: Path, profiles: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    file = folder / "job.yaml"
    file.write_text(JOB + WAYS[way] + f"planning: {{profiles: {profiles}}}\n" * (way == "workers"))
    arguments = "--config", str(file), "--output", str(folder), *arguments
    if way == "pipeline":
        return run_python(2, "-m", "ooodist.train", *arguments, seconds=300)
    launcher = [sys.executable, "launch/local.py", "-np", "2", "--engine", "collective"]
    return subprocess.run(
        [*launcher, "--timeout", "280", "--", fast_python(), "-c", PROGRAM, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Way:
    folder = tmp_path_factory.mktemp(request.param)
    job = run(request.param, folder / "first", folder / "profiles")
    assert job.returncode == 0, job.stdout[-6000:]
    return Way(request.param, folder, job.stdout)


def checkpoint(folder: Path, epoch: int) -> Path:
    """The checkpoint of an epoch: a Keras file, or a folder of the parts of a pipeline."""
    return dict(folders.checkpoints(folder))[epoch, 0]


def loaded(folder: Path, epoch: int) -> keras.Model:
    """The model in a checkpoint."""
    path = checkpoint(folder, epoch)
    if path.is_dir():
        merged = folder / f"merged-{epoch}.keras"
        convert.merge(path, merged)
        path = merged
    return keras.models.load_model(path)


def selection(folder: Path, epoch: int) -> dict[str, Any]:
    found = folders.read_state(checkpoint(folder, epoch)).selection
    assert found is not None
    return found


def weights(folder: Path, epoch: int) -> list[np.ndarray]:
    weights: list[np.ndarray] = loaded(folder, epoch).get_weights()
    return weights


def test_some_tensors_are_trained_and_others_are_not(way: Way) -> None:
    assert re.search(r"elastic: selection 1 at step 0: \d of 4 items", way.printed), way.printed
    # The training is short, and rank 0 says so.
    assert way.printed.count("elastic: to measure took") == 1
    first = way.folder / "first"
    state = selection(first, 2)
    assert state["version"] == len(state["renewals"]) == 1
    assert {name for name, count in state["counts"].items() if count} == set(state["weights"])
    assert set(state["counts"].values()) <= {0, 10}
    [renewal] = state["renewals"]
    assert len(renewal["selected"]) < len(renewal["importance"]) == 4
    one, two = (loaded(first, epoch) for epoch in (1, 2))
    for before, after in zip(one.trainable_variables, two.trainable_variables, strict=True):
        moved = bool((before.numpy() != after.numpy()).any())
        assert moved == (after.path in state["weights"])


def test_a_resumed_run_goes_on_with_the_selection(way: Way) -> None:
    first, second = way.folder / "first", way.folder / "second"
    second.mkdir()
    source = checkpoint(first, 1)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, second / source.name)
    job = run(way.name, second, way.folder / "profiles", "--resume")
    assert job.returncode == 0, job.stdout[-6000:]
    assert "resuming after epoch 1" in job.stdout
    assert "elastic: selection" not in job.stdout
    ours, theirs = selection(second, 2), selection(first, 2)
    assert ours.pop("best_loss") == pytest.approx(theirs.pop("best_loss"), rel=1e-4)
    assert ours == theirs
    for one, other in zip(weights(second, 2), weights(first, 2), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())


def test_a_wrong_job_ends_on_all_ranks_with_one_message(tmp_path: Path) -> None:
    small = ["--set", "model.layers=[8]", "--set", "elastic.rho=0.01"]
    job = run("pipeline", tmp_path / "wrong", tmp_path, *small)
    assert job.returncode == ERROR_CODE, job.stdout[-6000:]
    found = re.findall("ooodist: error: .*", job.stdout)
    assert len(set(found)) == 1, job.stdout[-6000:]
    message = r"elastic\.rho is 0\.01, but .* the smallest feasible rho is 0\.\d"
    assert re.search(message, found[0])
    assert "Traceback" not in job.stdout
