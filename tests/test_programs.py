"""The programs that are installed with ooodist, in a folder without the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests import environments
from tests.jobs import ROOT

PROGRAMS = {entry.name: entry for entry in distribution("ooodist").entry_points}
TWO_LINES = """\
import ooodist
ooodist.init()
print("rank", ooodist.rank(), "of", ooodist.size())
"""


def run(
    folder: Path, name: str, *arguments: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Runs a program by its path, as without an activated environment."""
    return subprocess.run(
        [str(Path(python).with_name(name)), *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_says_what_it_is_for(name: str, tmp_path: Path) -> None:
    shown = run(tmp_path, name, "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("usage: ")
    assert "examples:" in shown.stdout
    wrong = run(tmp_path, name, "--no-such-option")
    assert wrong.returncode == 2
    assert "error: " in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_all_programs_are_known() -> None:
    names = ("checkpoint", "engines", "launch", "plan", "train", "zoo")
    assert sorted(PROGRAMS) == [f"ooodist-{name}" for name in names]


def test_two_workers_run_a_script(tmp_path: Path) -> None:
    (tmp_path / "my_training.py").write_text(TWO_LINES, "utf-8")
    job = run(tmp_path, "ooodist-launch", "-np", "2", "my_training.py")
    assert job.returncode == 0, job.stderr
    assert "[0] rank 0 of 2" in job.stdout
    assert "[1] rank 1 of 2" in job.stdout


TRAINING = """\
import ooodist
ooodist.init()
import keras
import numpy as np
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model = ooodist.distribute(model)
x = np.ones((8, 4))
losses = model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0).history["loss"]
print("learns", losses[1] < losses[0])
"""
IS_3_13 = """\
import importlib.util, sys
sys.exit(sys.version_info[:2] != (3, 13) or not importlib.util.find_spec("tensorflow"))
"""


@pytest.fixture
def python_3_13(tmp_path: Path) -> str:
    """A Python 3.13 with a wheel of ooodist, and the packages of one that has TensorFlow."""
    name = os.environ.get("OOODIST_PYTHON_3_13", "python3.13")
    found = shutil.which(name)
    if found is None or subprocess.run([found, "-c", IS_3_13], check=False).returncode:
        pytest.skip(f"{name} is no Python 3.13 with TensorFlow: OOODIST_PYTHON_3_13 names one")
    python = environments.make(
        tmp_path / "environment", Path(found), without=("ooodist", "__editable__")
    )
    pip = [str(python), "-m", "pip", "--quiet"]
    wheels = list(ROOT.glob("wheel/*.whl"))  # scripts/test.sh
    if not wheels:
        source, build = tmp_path / "source", ["--no-deps", "--no-build-isolation", "--wheel-dir"]
        shutil.copytree(ROOT / "ooodist", source / "ooodist")
        for file in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / file, source)
        subprocess.run([*pip, "wheel", *build, str(tmp_path), str(source)], check=True)
        wheels = list(tmp_path.glob("*.whl"))
    subprocess.run([*pip, "install", "--no-deps", *map(str, wheels)], check=True)
    return str(python)


def test_a_wheel_trains_on_python_3_13(python_3_13: str, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "my_training.py").write_text(TRAINING, "utf-8")
    job = run(folder, "ooodist-launch", "-np", "2", "my_training.py", python=python_3_13)
    assert job.returncode == 0, job.stderr
    assert "[0] learns True" in job.stdout
    assert "[1] learns True" in job.stdout
