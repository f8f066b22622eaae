from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.conftest import LAUNCH, Launchers, launchers_of, needs_root, networks_of


@pytest.fixture
def netlabs(tmp_path: Path) -> Iterator[Launchers]:
    """``launch/netlab.py``, of which nothing may be left when the test has ended."""
    needs_root()
    with launchers_of(LAUNCH / "netlab.py", tmp_path) as started:
        yield started
        for launcher in started.started:
            assert not networks_of(launcher.pid)
