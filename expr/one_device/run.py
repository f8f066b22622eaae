"""Times the steps of models on one device, in each of the ways of worker.py.

    python expr/one_device/run.py [--rows densenet_12:32 bert_12:8 ...] [--ways graph xla ...]
        [--threads 2/2 2/1 ...] [--turns 5] [--steps 20] [--ready-within 600] [--deterministic]
        [--output FOLDER]

All processes start and compile side by side, each with one model, one batch, one way, and one
setting of TensorFlow's threads (ops that run at a time / threads of an op). When all
are ready, or the time for that is over, they take turns, one at a time, so that a change of the
machine's speed meets all alike. Written: results.csv (seconds of a step, of each turn) and
results.md (medians, how many cores were busy, ratios, and the step from which losses differ from
those of the first ``graph``).
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

OF_A_GPU = ("graph", "two_streams", "xla", "xla_graphs", "xla_concurrent", "xla_streams")
ROWS = ("densenet_12:32", "mobilenet_v3_0.5:32", "resnet50:32", "bert_12:8")


@dataclass
class Row:
    """One process: a model, a batch, a way and threads, its losses, and the times of each turn."""

    subject: str
    batch: int
    way: str
    threads: str  # "ops at a time/threads of an op", or "" for TensorFlow's choice
    process: subprocess.Popen[str]
    log: Path
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    core_seconds: list[float] = field(default_factory=list)
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
            print(f"{self}: {self.error}", flush=True)
            return {}

    def __str__(self) -> str:
        return " ".join(filter(None, [self.subject, str(self.batch), self.way, self.threads]))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", nargs="+", default=ROWS, metavar="MODEL:BATCH")
    parser.add_argument("--ways", nargs="+", default=OF_A_GPU, choices=WAYS)
    parser.add_argument(
        "--threads",
        nargs="+",
        type=threads,
        default=[""],
        metavar="OPS/THREADS",
        help="how many ops run at a time, and in how many threads each; default: TensorFlow's own",
    )
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
    rows = [
        start(row, way, each, options)
        for row in options.rows
        for way in options.ways
        for each in options.threads
    ]
    for row in await_answers(rows, options.ready_within):
        row.losses = list(row.ask().get("losses", []))  # type: ignore[call-overload]
        if row.losses:
            seconds = time.monotonic() - began
            print(f"{row}: ready after {seconds:.0f} s", flush=True)
    for row in rows:
        if not row.losses and not row.error:
            row.error = f"not compiled within {options.ready_within:g} s"
            row.process.kill()
    for _turn in range(options.turns):
        for row in rows:
            answer = row.ask(options.steps)
            if answer:
                row.seconds.append(float(answer["seconds"]))  # type: ignore[arg-type]
                row.core_seconds.append(float(answer["core_seconds"]))  # type: ignore[arg-type]
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
        names = ["model", "batch", "way", "threads", "turn", "seconds", "core_seconds"]
        table.writerow(names)
        for row in rows:
            for turn, times in enumerate(zip(row.seconds, row.core_seconds, strict=True)):
                measured = [f"{seconds:.6f}" for seconds in times]
                table.writerow([row.subject, row.batch, row.way, row.threads, turn, *measured])
    (folder / "results.md").write_text(report(rows))


def threads(text: str) -> str:
    numbers = text.split("/")
    if len(numbers) != 2 or not all(number.isdigit() and int(number) > 0 for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not OPS/THREADS, such as 2/1")
    return text


def start(name: str, way: str, threads: str, options: argparse.Namespace) -> Row:
    subject, _, batch = name.partition(":")
    if subject not in SUBJECTS or not batch.isdigit():
        raise SystemExit(f"--rows: {name!r} is not MODEL:BATCH; models: {', '.join(SUBJECTS)}")
    log = options.output / "_".join([subject, batch, way, *threads.split("/")]).rstrip("_")
    log = log.with_name(f"{log.name}.log")  # a model's name may have a dot
    worker = Path(__file__).with_name("worker.py")
    command = [sys.executable, str(worker), subject, batch, way]
    if options.deterministic:
        command.append("--deterministic")
    root = str(Path(__file__).resolve().parents[2])
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    if threads:
        ops, of_an_op = threads.split("/")
        environment |= {"TF_NUM_INTEROP_THREADS": ops, "TF_NUM_INTRAOP_THREADS": of_an_op}
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=environment,
        )
    return Row(subject, int(batch), way, threads, process, log)


def report(rows: list[Row]) -> str:
    """A table: for each model and batch, each way's step, its ratio to the best others, losses."""
    lines = [
        "| model | batch | way | threads | step (ms) | range | cores | "
        "faster than xla | than graph | losses as graph's |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        same = [r for r in rows if (r.subject, r.batch) == (row.subject, row.batch)]
        graphs = [r for r in same if r.way == "graph"]
        start = f"| {row.subject} | {row.batch} | {row.way} | {row.threads} |"
        if row.error or not row.seconds:
            lines.append(f"{start} failed: {row.error} | | | | | |")
            continue
        step = statistics.median(row.seconds)
        cores = statistics.median(row.core_seconds) / step
        lines.append(
            f"{start} {step * 1e3:.2f} | {min(row.seconds) * 1e3:.2f} to "
            f"{max(row.seconds) * 1e3:.2f} | {cores:.2f} | "
            f"{ratio([r for r in same if r.way == 'xla'], step)} | {ratio(graphs, step)} | "
            f"{agreement(row, graphs[0] if graphs else None)} |"
        )
    return "\n".join(lines) + "\n"


def ratio(rows: list[Row], step: float) -> str:
    """How much faster a step is than in the fastest of these rows."""
    medians = [statistics.median(row.seconds) for row in rows if row.seconds]
    return f"{min(medians) / step:.2f}x" if medians else ""


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
