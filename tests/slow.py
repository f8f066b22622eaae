"""A pytest plugin: lists the cases that take more than 20 s.

The limit is that of the machine that ``tests/processor_time.py`` was timed on; on a slower one it
is as much higher.
"""

from __future__ import annotations

import pytest

from tests import processor_time

LIMIT_SECONDS = 20.0


class Watch:
    """Notes how long cases take.

    Attributes:
        limit: of a case's setup, call or teardown, in seconds on this machine.
    """

    def __init__(self) -> None:
        loops = [processor_time.loop_seconds() for _ in range(20)]
        self.limit = LIMIT_SECONDS * max(1.0, min(loops) / processor_time.LOOP_SECONDS)
        self._too_long: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes one that takes too long; with pytest-xdist, in the first process."""
        if report.duration > self.limit:
            self._too_long.append(f"{report.duration:.1f} s {report.when} {report.nodeid}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Says which."""
        if self._too_long:
            terminalreporter.section(f"over {self.limit:.0f} s: shorten them")
            terminalreporter.write_line("\n".join(self._too_long))
