"""Tables as text and as CSV, and how numbers are shown in them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

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


def write_csv(rows: Iterable[Mapping[str, object]], file: Path) -> None:
    """Writes rows, of which there is at least one, under the names of their cells.

    The file is replaced. Raises OSError.
    """
    first, *others = rows
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, first)
        writer.writeheader()
        writer.writerows([first, *others])


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
