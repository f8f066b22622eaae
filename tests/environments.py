"""Environments with packages of another one, as links: nothing is downloaded."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"


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
