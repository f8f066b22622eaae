"""Imported before all else: finds the Python that has ooodist.

A launcher that was started with another one, as without ``. .venv/bin/activate``, goes on with that
of the environment that the scripts have set up. The job's commands find its programs first, too.
"""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def find() -> None:
    """Returns if this Python has ooodist, else starts this program again with one that has."""
    environment = Path(os.environ.get("OOODIST_VENV", ROOT / ".venv"))
    python = environment / "bin" / "python"
    if importlib.util.find_spec("ooodist") is None:
        if not python.exists() or Path(sys.prefix) == environment.resolve():
            print(
                f"ooodist: error: {sys.executable} has no ooodist, and neither has {environment}; "
                "run scripts/quickstart.sh, which sets it up, or use a Python that has ooodist",
                file=sys.stderr,
            )
            sys.exit(2)
        os.execv(python, [str(python), *sys.argv])
    if sys.prefix != sys.base_prefix:  # a virtual environment, activated or not
        programs = str(Path(sys.prefix) / "bin")
        if programs not in (path := os.environ.get("PATH", os.defpath)).split(os.pathsep):
            os.environ["PATH"] = programs + os.pathsep + path


find()
