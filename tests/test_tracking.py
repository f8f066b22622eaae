"""Weights & Biases and MLflow, offline, as callbacks of a job file: the example."""

from __future__ import annotations

from pathlib import Path

import pytest

from ooodist import engines
from tests.job.test_run import run
from tests.jobs import ROOT


@pytest.mark.parametrize(
    ("package", "kept"), [("wandb", "wandb/offline-run-*/*.wandb"), ("mlflow", "mlflow.db")]
)
def test_runs_are_kept_in_files(
    package: str, kept: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip(package, reason=f"pip install {package}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    callbacks = f"callbacks=['examples.tracking:{package}_offline']"
    run(engines.init("local"), tmp_path / "out", "epochs=2", callbacks)
    assert list(tmp_path.glob(kept))
