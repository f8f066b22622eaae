"""The programs that are installed with ooodist, in a folder without the repository."""

from __future__ import annotations

import subprocess
from importlib.metadata import distribution
from pathlib import Path

import pytest

PROGRAMS = {entry.name: entry for entry in distribution("ooodist").entry_points}
TWO_LINES = """\
import ooodist
ooodist.init()
print("rank", ooodist.rank(), "of", ooodist.size())
"""


def run(python: str, folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
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
def test_a_program_says_what_it_is_for(name: str, python: str, tmp_path: Path) -> None:
    shown = run(python, tmp_path, name, "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("usage: ")
    assert "examples:" in shown.stdout
    wrong = run(python, tmp_path, name, "--no-such-option")
    assert wrong.returncode == 2
    assert "error: " in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_all_programs_are_known() -> None:
    names = ("checkpoint", "engines", "launch", "plan", "train", "zoo")
    assert sorted(PROGRAMS) == [f"ooodist-{name}" for name in names]


def test_two_workers_run_a_script(python: str, tmp_path: Path) -> None:
    (tmp_path / "my_training.py").write_text(TWO_LINES, "utf-8")
    job = run(python, tmp_path, "ooodist-launch", "-np", "2", "my_training.py")
    assert job.returncode == 0, job.stderr
    assert "[0] rank 0 of 2" in job.stdout
    assert "[1] rank 1 of 2" in job.stdout
