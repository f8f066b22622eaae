"""Uploads are checked in a process of their own, and whatever that does, an error says it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ooodist.errors import UserError
from ooodist.zoo import entry
from ooodist.zoo.service import checking
from tests.zoo.entries import chain, write_plain


def test_it_finds_what_a_check_here_finds(tmp_path: Path) -> None:
    write_plain(tmp_path / "a.keras", chain([2, 3, 4]))
    with (tmp_path / "a.keras").open("rb") as file:
        assert checking.check(file) == entry.check(tmp_path / "a.keras")
    write_plain(tmp_path / "b.keras", chain([2, 3]), members={"config.json": b"{"})
    with (tmp_path / "b.keras").open("rb") as file, pytest.raises(UserError) as caught:
        checking.check(file)
    assert str(caught.value).startswith("model file that was sent cannot be read or is damaged")


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [("BYTES", 2**20, "cannot be checked within the time and memory"), ("SECONDS", 0, "exit code")],
)
def test_its_limits_end_it(limit: str, value: int, message: str, tmp_path: Path) -> None:
    """Whatever it is that takes so much, as no library's every fault is known."""
    write_plain(tmp_path / "a.keras", chain([2, 3]))
    program = f"""if True:
        from ooodist.zoo.service import checking
        checking.{limit} = {value}
        checking.main()
    """
    with (tmp_path / "a.keras").open("rb") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "COMMAND", [sys.executable, "-c", program])
        with pytest.raises(UserError, match=message):
            checking.check(file)
