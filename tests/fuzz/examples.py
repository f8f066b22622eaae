"""How many examples a fuzz test has: few in CI; ``OOODIST_FUZZ=200`` for 200 of each."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

EXAMPLES = int(os.environ.get("OOODIST_FUZZ", "20"))
SECONDS = 20  # for one example: longer is a hang


def fuzzed(strategy: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a test mutated examples of this strategy."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        few = settings(
            max_examples=EXAMPLES,
            deadline=timedelta(seconds=SECONDS),
            suppress_health_check=list(HealthCheck),
        )
        return few(given(strategy)(test))

    return decorate


@cache
def scratch() -> Path:
    """A folder for files of examples."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
