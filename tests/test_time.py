"""Where there is a limit, tests that begin too late are skipped, and pytest says so."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.jobs import ROOT

ONE = "tests/test_errors.py::test_a_text_over_several_lines_becomes_one"


@pytest.mark.parametrize(("minutes", "said"), [(-1, "1 skipped"), (60, "1 passed")])
def test_what_begins_too_late_is_skipped(minutes: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", ONE],
        cwd=ROOT,
        env=os.environ | {"OOODIST_TESTS_UNTIL": str(time.time() + 60 * minutes)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said in done.stdout
    assert ("no time is left for it" in done.stdout) == (minutes < 0)
