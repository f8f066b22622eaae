"""README and docs/ have none of the phrases that CONTRIBUTING.md replaces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "examples/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
PHRASES = re.findall(
    r'^\| "([^"]+)" \|', (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE
)


def test_there_are_a_dozen() -> None:
    assert len(PHRASES) >= 12


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_has_none_of_them(page: Path) -> None:
    words = " ".join(page.read_text("utf-8").split())
    for phrase in PHRASES:
        assert not re.search(rf"\b{phrase}\b", words, re.IGNORECASE), phrase
