"""Finds the Python that has ooodist; launchers import this module before all else.

A launcher started with another Python, as without ``. .venv/bin/activate``, is restarted with that
of the environment that the scripts set up.
"""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def find() -> None:
    """Restarts this program with a Python that has ooodist, unless this one has it."""
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


find()
