"""Tables, and how numbers are shown in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ooodist.report.tables import (
    Columns,
    aligned,
    cells,
    milliseconds,
    readable_bytes,
    readable_seconds,
    write_csv,
)


def test_aligned() -> None:
    lines = [("a", "bb", "c"), ("aaa", "b", "ccc")]
    assert aligned(lines) == "a    bb    c\naaa   b  ccc"
    assert aligned(lines, left=(0, 1)) == "a    bb    c\naaa  b   ccc"


def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    write_csv([{"name": "a, b", "k": None}, {"k": 1 / 3, "name": "c"}], file)
    assert file.read_text().splitlines() == ["name,k", '"a, b",', "c,0.333333"]
    with pytest.raises(FileNotFoundError):
        write_csv([{"k": 1}], tmp_path / "nowhere" / "rows.csv")


def test_cells_show_what_is_known() -> None:
    columns: Columns = {"gain": ("speed_up", "{:.1f}x".format), "number": ("number", str)}
    assert cells({"number": None, "name": "a", "speed_up": 1.25}, columns) == ["1.2x", "-"]


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")],
)
def test_readable_bytes(num_bytes: int, shown: str) -> None:
    assert readable_bytes(num_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 us"), (2.5e-6, "2.5 us"), (0.0015, "1.5 ms"), (12, "12 s")]
)
def test_readable_seconds(seconds: float, shown: str) -> None:
    assert readable_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(33, "33000.0"), (0.0123, "12.3"), (0.009, "9.000"), (4e-6, "0.004")]
)
def test_milliseconds(seconds: float, shown: str) -> None:
    assert milliseconds(seconds) == shown
