"""Gives a fuzz test its examples."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis.strategies import SearchStrategy

from tests.thorough import few

SECONDS = 20  # for one example: longer is a hang


def fuzzed(strategy: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a test mutated examples of this strategy."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        limit = timedelta(seconds=SECONDS)
        return few(20, deadline=limit, suppress_health_check=list(HealthCheck))(
            given(strategy)(test)
        )

    return decorate


@cache
def scratch() -> Path:
    """A folder for files of examples."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
