"""``python -m ooodist.plan`` in a process of its own, to see what it imports."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

from tests.jobs import ROOT

SCRIPT = (
    "import sys; from ooodist.plan.__main__ import main; code = main(sys.argv[1:]); "
    "print('tensorflow' in sys.modules); sys.exit(code)"
)


def planned(*arguments: str, timeout: float) -> list[str]:
    """The lines that it prints; the last says whether TensorFlow was imported."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def table_rows(folder: Path) -> list[dict[str, str]]:
    """Those of the plans that it has written into the folder."""
    with (folder / "plans.csv").open(newline="") as file:
        return list(csv.DictReader(file))
