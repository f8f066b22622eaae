"""Writes results.md, the table of results.csv: ``python expr/faults/report.py [results.csv]``."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from faults import FAULTS  # noqa: E402
from job import ENGINES  # noqa: E402


def table(rows: list[dict[str, str]]) -> str:
    """Returns a line a fault: seconds and exit code of each engine, in bold what misses a bar."""
    cells = {(row["fault"], row["engine"]): row for row in rows}
    lines = ["| fault | " + " | ".join(ENGINES) + " |", "|---" * (len(ENGINES) + 1) + "|"]
    for name, fault in FAULTS.items():
        texts = []
        for engine in ENGINES:
            row = cells.get((name, engine))
            if engine not in fault.engines:
                text = "-"
            elif row is None:
                text = "not run"
            elif row["held"] == "yes":
                text = f"{row['seconds']} s, code {row['code']}"
            else:
                text = f"**{row['seconds']} s, code {row['code']}: {row['missed']}**"
            texts.append(text)
        lines.append(f"| {fault.what} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def main(path: Path) -> None:
    """Writes the table beside the results."""
    with path.open(newline="") as file:
        path.with_suffix(".md").write_text(table(list(csv.DictReader(file))))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results.csv")
