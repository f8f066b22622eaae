"""Workers of ooodist.run that need not import TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest

from ooodist.launcher.cleaner import Cleaner
from tests.fork_server import fast_python


def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the launchers of ooodist.run start workers by ``fast_python``."""
    popen = Cleaner.popen

    def with_quick_workers(self: Cleaner, command: list[str], **options: Any) -> Any:
        command[command.index("--") + 1] = fast_python()
        return popen(self, command, **options)

    monkeypatch.setattr(Cleaner, "popen", with_quick_workers)
