"""Environments with packages of another one, as links: nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"
IS_3_13 = """\
import importlib.util, sys
sys.exit(sys.version_info[:2] != (3, 13) or not importlib.util.find_spec("tensorflow"))
"""


def packages_of(python: Path) -> Path:
    """The folder with a Python's packages."""
    return Path(subprocess.check_output([str(python), "-c", PACKAGES], text=True).strip())


def make(folder: Path, python: Path, *, without: Sequence[str]) -> Path:
    """Makes an environment with links to a Python's packages; returns the new Python.

    Args:
        without: how the names of what is absent begin.
    """
    subprocess.run([str(python), "-m", "venv", "--without-pip", str(folder)], check=True)
    made = folder / "bin" / "python"
    packages = packages_of(made)
    for item in packages_of(python).iterdir():
        if not item.name.startswith(tuple(without)):
            (packages / item.name).symlink_to(item)
    return made


def python_3_13(folder: Path) -> str:
    """A Python 3.13 with a wheel of ooodist, and the packages of one that has TensorFlow."""
    name = os.environ.get("OOODIST_PYTHON_3_13", "python3.13")
    found = shutil.which(name)
    if found is None or subprocess.run([found, "-c", IS_3_13], check=False).returncode:
        pytest.skip(f"{name} is no Python 3.13 with TensorFlow: OOODIST_PYTHON_3_13 names one")
    python = make(folder / "environment", Path(found), without=("ooodist", "__editable__"))
    pip = ["-m", "pip", "--quiet"]
    wheels = list(ROOT.glob("wheel/*.whl"))  # scripts/test.sh
    if not wheels:
        source, build = folder / "source", ["--no-deps", "--no-build-isolation", "--wheel-dir"]
        shutil.copytree(ROOT / "ooodist", source / "ooodist")
        for file in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / file, source)
        subprocess.run(
            [sys.executable, *pip, "wheel", *build, str(folder), str(source)], check=True
        )
        wheels = list(folder.glob("*.whl"))
    subprocess.run([str(python), *pip, "install", "--no-deps", *map(str, wheels)], check=True)
    return str(python)
