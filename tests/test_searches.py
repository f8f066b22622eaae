"""Searches of other libraries whose trials train on workers: the examples, as a user runs them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from ooodist.zoo.zoo import Zoo
from tests.jobs import ROOT
from tests.launcher.function.quick import quick_workers


@pytest.mark.parametrize("package", ["optuna", "keras_tuner"])
def test_trials_train_on_two_workers(
    package: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip(package, reason=f"pip install {package.replace('_', '-')}")
    monkeypatch.chdir(tmp_path)
    quick_workers(monkeypatch)
    runpy.run_path(str(ROOT / f"examples/{package}_search.py"), run_name="__main__")
    shown = capsys.readouterr()
    assert "best of 2 trials: {'rate': 0.0" in shown.out
    assert shown.err.count("engine collective (OOODIST_ENGINE=collective): rank 0 of 2") == 2


@pytest.mark.parametrize(
    ("package", "program", "folder"),
    [
        ("optuna", "zoo_search", "trials"),
        ("keras_tuner", "zoo_keras_tuner", "keras_tuner_trials"),
    ],
)
def test_trials_start_from_the_best_one_before_them(
    package: str,
    program: str,
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip(package, reason=f"pip install {package.replace('_', '-')}")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / f"examples/{program}.py"), run_name="__main__")
    assert "best of 3 trials: {'rate': 0.0" in capsys.readouterr().out
    with Zoo(f"runs/{folder}") as zoo:
        rows = sorted(zoo.list(), key=lambda row: row.created)
    assert [row.meta.parent is None for row in rows] == [True, False, False]
    assert {row.meta.parent for row in rows[1:]} <= {row.id for row in rows}
