"""Fine-tuning by a job file: the commands of docs/job_file.md, and what a frozen layer costs."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

from ooodist import engines
from ooodist.checkpoint import folder as folders
from ooodist.config import job as job_file
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.job.preparation import set_up
from ooodist.job.run import train
from tests.fork_server import fast_python
from tests.jobs import ROOT

PRETRAINING = ["model={name: resnet20, width: 8, blocks_per_stage: 1}", "epochs=5"]
EXAMPLE = ROOT / "examples/fine_tune.yaml"
FROZEN = ("stem_", "stage_0_", "stage_1_")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    yield engines.init("local")
    keras.config.set_dtype_policy("float32")  # jobs set it for the whole process


@pytest.fixture(scope="module")
def pretrained(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the first command."""
    folder = tmp_path_factory.mktemp("pretrained")
    run(engine, None, folder, *PRETRAINING)
    return folder / "model.keras"


def run(
    engine: Engine, file: Path | None, output: Path, *overrides: str, resume: bool = False
) -> None:
    config = job_file.load(file, [*overrides, f"output={output}", "report.tensorboard=false"])
    config = replace(config, checkpoint=replace(config.checkpoint, resume=resume))
    train(set_up(config, engine), time.monotonic())


def values(file: Path) -> dict[str, np.ndarray]:
    model = keras.models.load_model(file)
    return {variable.path: variable.numpy() for variable in model.weights}


def is_frozen(path: str) -> bool:
    return path.startswith(FROZEN)


def test_two_workers_train_a_new_head_and_what_is_not_frozen(
    pretrained: Path, tmp_path: Path
) -> None:
    launcher = [sys.executable, "launch/local.py", "-np", "2", "--engine", "collective"]
    overrides = [f"model.weights={pretrained}", f"output={tmp_path}", "report.trace=2"]
    job = subprocess.run(
        [
            *(*launcher, "--timeout", "150", "--", fast_python(), "-m", "ooodist.train"),
            *("--config", str(EXAMPLE)),
            *(part for each in overrides for part in ("--set", each)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert job.returncode == 0, job.stdout[-4000:]
    assert job.stdout.count("predictions/kernel, predictions/bias have other shapes there") == 1
    (accuracy,) = re.findall(r"validation   accuracy ([\d.]+)", job.stdout)
    assert float(accuracy) > 0.9

    before, after = values(pretrained), values(tmp_path / "model.keras")
    assert before["predictions/kernel"].shape[1:] == (10,)
    assert after["predictions/kernel"].shape[1:] == (2,)
    frozen = {path for path in after if is_frozen(path)}
    assert any("norm/moving_mean" in path for path in frozen)
    for path in after.keys() - {"predictions/kernel", "predictions/bias"}:
        assert np.array_equal(before[path], after[path]) == (path in frozen), path

    _, state = folders.latest(tmp_path)
    kept = [variable.path for variable in state.variables if variable.path not in after]
    assert any("predictions_kernel" in path for path in kept)
    assert not [path for path in kept if any(name in path for name in FROZEN)]
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    names = {event["name"] for event in events}
    assert any("stage_2_block_0_1_conv" in name for name in names)
    assert not [name for name in names if any(layer in name for layer in FROZEN)]


def test_a_resumed_fine_tuning_is_the_uninterrupted_one(
    engine: Engine, pretrained: Path, tmp_path: Path
) -> None:
    start = f"model.weights={pretrained}"
    run(engine, EXAMPLE, tmp_path / "whole", start, "epochs=2")
    run(engine, EXAMPLE, tmp_path / "parts", start, "epochs=1")
    other = "model.freeze=['*', '!predictions']"
    with pytest.raises(UserError, match=r"optimizer: it has .*stage_2_block_0"):
        run(engine, EXAMPLE, tmp_path / "parts", start, other, "epochs=2", resume=True)
    run(engine, EXAMPLE, tmp_path / "parts", start, "epochs=2", resume=True)
    states = [folders.latest(tmp_path / name)[1] for name in ("whole", "parts")]
    assert states[0].fingerprint == states[1].fingerprint
