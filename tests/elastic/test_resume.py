"""Going on from a checkpoint of elastic training, or elastically from one of full training."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest

from ooodist import engines
from ooodist.checkpoint import folder as folders
from ooodist.config import job as job_file
from ooodist.job.preparation import set_up
from ooodist.job.run import train
from tests.elastic.conftest import set_equal_costs

pytestmark = pytest.mark.usefixtures("equal_costs")
JOB = [
    "model={name: 'tests.elastic.test_data_parallel:network',"
    " arguments: {size: 8, channels: 1, classes: 10}}",
    "batch=64",
    "steps_per_epoch=6",
    "report.tensorboard=false",
    "optimizer=adam",
    "elastic={rho: 0.9, renew: 5 steps, batches: 2, keep: 0}",
]


def run(output: Path, *overrides: str, resume: bool = False) -> None:
    config = job_file.load(None, [*JOB, *overrides, f"output={output}"])
    config = replace(config, checkpoint=replace(config.checkpoint, resume=resume))
    train(set_up(config, engines.current()), time.monotonic())


def without_seconds(found: Any) -> Any:
    """A state without what was measured with a clock."""
    if isinstance(found, dict):
        clocks = ("seconds", "elastic_rho")
        return {key: without_seconds(value) for key, value in found.items() if key not in clocks}
    return [without_seconds(each) for each in found] if isinstance(found, list) else found


@pytest.fixture(scope="module")
def whole(profiles: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of three epochs."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_equal_costs(monkeypatch)
        folder = tmp_path_factory.mktemp("whole")
        run(folder, *planned(profiles), "epochs=3")
    return folder


def planned(profiles: str) -> list[str]:
    return [f"planning.profiles={profiles}", "order.name=planned"]


def interrupted(whole: Path, folder: Path) -> None:
    """Leaves what a run that ends two epochs into the whole one has kept."""
    shutil.copy(dict(folders.checkpoints(whole))[2, 0], folder)


def test_a_resumed_run_is_the_uninterrupted_one(whole: Path, tmp_path: Path, profiles: str) -> None:
    interrupted(whole, tmp_path)  # two steps after the third selection
    keras.utils.set_random_seed(99)  # a new process knows nothing of the old one
    run(tmp_path, *planned(profiles), "epochs=3", resume=True)

    expected, found = (folders.latest(folder)[1] for folder in (whole, tmp_path))
    assert expected.selection is not None
    renewals = expected.selection["renewals"]
    assert [renewal["step"] for renewal in renewals] == [0, 5, 10, 15]
    assert all(len(renewal["selected"]) < len(renewal["importance"]) for renewal in renewals)
    assert without_seconds(found.selection) == without_seconds(expected.selection)
    assert found.fingerprint == expected.fingerprint
    assert without_seconds(found.history) == without_seconds(expected.history)


def test_a_checkpoint_can_be_trained_on_in_full_and_that_one_elastically(
    whole: Path, tmp_path: Path, profiles: str, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(whole, tmp_path)
    with caplog.at_level("WARNING", logger="ooodist"):
        run(tmp_path, "elastic=null", "epochs=3", resume=True)
    assert "selection of tensors does not count: all are trained now" in caplog.text
    assert folders.latest(tmp_path)[1].selection is None

    run(tmp_path, f"planning.profiles={profiles}", "epochs=4", resume=True)
    selection = folders.latest(tmp_path)[1].selection
    assert selection is not None
    assert [renewal["step"] for renewal in selection["renewals"]] == [0, 5]
    counts = selection["counts"]
    assert 24 in counts.values()  # all steps before count
