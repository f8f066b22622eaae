"""Tables as text and as CSV, and how numbers are shown in them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]  # values by the name of their column in CSV; None: not known
# By the head of a column of a text: the column in CSV, and how a text shows a value.
Columns = dict[str, tuple[str, Callable[[Any], str]]]

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def aligned(lines: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Formats columns two blanks apart; those in ``left`` are left-justified, others right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def cells(row: Row, columns: Columns) -> list[str]:
    """The cells of a text for these columns of a row."""
    return ["-" if row[name] is None else show(row[name]) for name, show in columns.values()]


def write_csv(rows: Sequence[Row], file: Path) -> None:
    """Writes rows, of which there is at least one, and the names of their columns.

    The file is replaced. Raises OSError.
    """
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        for row in rows:
            values = row.items()
            writer.writerow({name: f"{v:.6f}" if isinstance(v, float) else v for name, v in values})


def readable_bytes(num_bytes: float) -> str:
    """Formats bytes: ``1536`` as ``1.5 KiB``."""
    for unit in _UNITS[:-1]:
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == _UNITS[0] else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} {_UNITS[-1]}"


def readable_seconds(seconds: float) -> str:
    """Formats a time with a fitting unit: ``0.0015`` -> ``1.5 ms``."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def milliseconds(seconds: float) -> str:
    """Formats seconds as milliseconds: ``0.0123`` -> ``12.3``; short times get more digits."""
    return f"{seconds * 1e3:.{1 if seconds >= 0.01 else 3}f}"
