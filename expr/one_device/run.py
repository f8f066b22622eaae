"""Times the steps of models on one device, in each of the ways of worker.py.

    python expr/one_device/run.py [--rows densenet_12:32 bert_12:8 ...] [--ways graph xla ...]
        [--turns 5] [--steps 20] [--ready-within 600] [--deterministic] [--output FOLDER]

All processes start and compile side by side, each with one model, one batch and one way. When all
are ready, or the time for that is over, they take turns, one at a time, so that a change of the
machine's speed meets all alike. Written: results.csv (seconds of a step, of each turn) and
results.md (medians, ratios, and the step from which losses differ from those of ``graph``).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from worker import SUBJECTS, WAYS

ROWS = ("densenet_12:32", "mobilenet_v3_0.5:32", "resnet50:32", "bert_12:8")


@dataclass
class Row:
    """One process: a model, a batch and a way, its losses, and the seconds of each turn."""

    subject: str
    batch: int
    way: str
    process: subprocess.Popen[str]
    log: Path
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    error: str = ""

    def ask(self, steps: int | None = None) -> dict[str, object]:
        """Returns the next answer; after an error, or the process's end, an empty one."""
        if self.error:
            return {}
        try:
            if steps is not None:
                print(steps, file=_pipe(self.process.stdin), flush=True)
            return dict(json.loads(_pipe(self.process.stdout).readline()))
        except (BrokenPipeError, ValueError):
            self.process.wait()
            self.error = last_line(self.log)
            print(f"{self.subject} {self.batch} {self.way}: {self.error}", flush=True)
            return {}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", nargs="+", default=ROWS, metavar="MODEL:BATCH")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="in a turn")
    parser.add_argument(
        "--ready-within", type=float, default=600.0, metavar="SECONDS", help="or it is left out"
    )
    parser.add_argument("--deterministic", action="store_true", help="of each op, one algorithm")
    parser.add_argument("--output", type=Path, default=Path("runs/one_device"))
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)

    began = time.monotonic()
    rows = [start(row, way, options) for row in options.rows for way in options.ways]
    for row in await_answers(rows, options.ready_within):
        row.losses = list(row.ask().get("losses", []))  # type: ignore[call-overload]
        if row.losses:
            seconds = time.monotonic() - began
            print(f"{row.subject} {row.batch} {row.way}: ready after {seconds:.0f} s", flush=True)
    for row in rows:
        if not row.losses and not row.error:
            row.error = f"not compiled within {options.ready_within:g} s"
            row.process.kill()
    for _turn in range(options.turns):
        for row in rows:
            answer = row.ask(options.steps)
            if answer:
                row.seconds.append(float(answer["seconds"]))  # type: ignore[arg-type]
        write(rows, options.output)
    for row in rows:
        _pipe(row.process.stdin).close()
        row.process.wait()
    print(report(rows))


def await_answers(rows: list[Row], seconds: float) -> Iterator[Row]:
    """Yields each row as soon as it has answered, or ended; at most for so many seconds."""
    until = time.monotonic() + seconds
    waiting = {_pipe(row.process.stdout): row for row in rows}
    while waiting and (left := until - time.monotonic()) > 0:
        for pipe in select.select(list(waiting), [], [], left)[0]:
            yield waiting.pop(pipe)


def write(rows: list[Row], folder: Path) -> None:
    """Writes what has been measured so far: a run that is cut off has lost one turn."""
    with (folder / "results.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["model", "batch", "way", "turn", "seconds"])
        for row in rows:
            for turn, seconds in enumerate(row.seconds):
                table.writerow([row.subject, row.batch, row.way, turn, f"{seconds:.6f}"])
    (folder / "results.md").write_text(report(rows))


def start(name: str, way: str, options: argparse.Namespace) -> Row:
    subject, _, batch = name.partition(":")
    if subject not in SUBJECTS or not batch.isdigit():
        raise SystemExit(f"--rows: {name!r} is not MODEL:BATCH; models: {', '.join(SUBJECTS)}")
    log = options.output / f"{subject}_{batch}_{way}.log"
    worker = Path(__file__).with_name("worker.py")
    command = [sys.executable, str(worker), subject, batch, way]
    if options.deterministic:
        command.append("--deterministic")
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    return Row(subject, int(batch), way, process, log)


def report(rows: list[Row]) -> str:
    """A table: for each model and batch, each way's step, its ratio to Keras's default, losses."""
    lines = [
        "| model | batch | way | step (ms) | range | faster than xla | losses as graph's |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        same = [r for r in rows if (r.subject, r.batch) == (row.subject, row.batch)]
        by_way = {r.way: r for r in same}
        start = f"| {row.subject} | {row.batch} | {row.way} |"
        if row.error or not row.seconds:
            lines.append(f"{start} failed: {row.error} | | | |")
            continue
        step = statistics.median(row.seconds)
        xla, graph = by_way.get("xla"), by_way.get("graph")
        ratio = f"{statistics.median(xla.seconds) / step:.2f}x" if xla and xla.seconds else ""
        lines.append(
            f"{start} {step * 1e3:.2f} | {min(row.seconds) * 1e3:.2f} to "
            f"{max(row.seconds) * 1e3:.2f} | {ratio} | {agreement(row, graph)} |"
        )
    return "\n".join(lines) + "\n"


def agreement(row: Row, graph: Row | None) -> str:
    """How long the losses of the first steps are the same, bit by bit."""
    if graph is None or not graph.losses or row is graph:
        return ""
    for step, (loss, expected) in enumerate(zip(row.losses, graph.losses, strict=True), start=1):
        if loss != expected:
            return f"until step {step}: {abs(loss - expected) / abs(expected):.0e} off"
    return f"all {len(row.losses)}"


def last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it ended without a word"


def _pipe(pipe: TextIO | None) -> TextIO:
    assert pipe is not None
    return pipe


if __name__ == "__main__":
    main()
