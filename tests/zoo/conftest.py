"""What tests of zoos share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ooodist.zoo.zoo import Zoo
from tests.zoo.entries import Adder


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[Zoo]:
    """An empty one."""
    with Zoo(tmp_path / "zoo") as made:
        yield made


@pytest.fixture
def add(tmp_path: Path) -> Adder:
    """Adds models to zoos."""
    folder = tmp_path / "files"
    folder.mkdir()
    return Adder(folder)


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where temporary files are made, also those of a service."""
    folder = tmp_path_factory.mktemp("service")
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    yield folder
    tempfile.tempdir = before
