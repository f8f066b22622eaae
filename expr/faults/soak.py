"""Jobs that are broken again and again for half an hour: see README.md.

    python expr/faults/soak.py [--minutes 30] [--engines byteps ...] [--seed 1]

All engines at once. Their data are read slowly (soak_data.py), so that they share two cores, and
so that undisturbed runs, with the same steps and no pauses, end soon.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from job import ENGINES, Job, weights  # noqa: E402
from soak_data import PAUSE, TRAINING_SAMPLES  # noqa: E402

from ooodist.checkpoint import folder as folders  # noqa: E402

STEP_SECONDS = 0.3  # of a job with pauses, 64 samples; five jobs share two cores
BATCH = 64  # of both workers
BETWEEN = (60.0, 120.0)  # seconds from a fault to the next
LOOK_SECONDS = 5.0
SETTLED_SECONDS = 45.0  # from the start of a process until its memory counts
COLUMNS = ("engine", "minute", "fault", "seconds_to_next_checkpoint")
QUANTITIES = ("memory, MB", "descriptors", "threads")
Usage = tuple[float, int, int]


def settings(epochs: int) -> list[str]:
    """Returns the settings of the job, besides those of the matrix."""
    return [
        "data={name: function, function: 'expr.faults.soak_data:digits', num_classes: 10}",
        "model={name: mlp, layers: [64, 64], dropout: 0.2}",
        f"epochs={epochs}",
        "checkpoint={every_epochs: 0, every_steps: 8, keep: 2}",
    ]


def usage(process: int) -> Usage | None:
    """Returns the resident MB, open descriptors and threads of a process; None if it has ended."""
    folder = Path("/proc", str(process))
    try:
        pages = int((folder / "statm").read_text().split()[1])
        descriptors, threads = len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, descriptors, threads


@dataclass
class Watch:
    """Looks every few seconds at the processes of a job.

    Attributes:
        seen: of each process, its role, and seconds since it was first seen with what it used.
        shared: entries and bytes of /dev/shm, with the seconds.
    """

    job: Job
    seen: dict[int, tuple[str, list[tuple[float, Usage]]]] = field(default_factory=dict)

    def look(self, now: float) -> None:
        """Notes what all use."""
        assert self.job.process is not None
        roles = {self.job.process.pid: "launcher"}
        for rank in (0, 1):
            if (found := self.job.rank(rank)) is not None:
                roles[found] = f"rank {rank}"
        for process, role in roles.items():
            if (used := usage(process)) is not None:
                self.seen.setdefault(process, (role, []))[1].append((now, used))

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Looks in the background."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(LOOK_SECONDS):
                self.look(time.monotonic())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def growth(self, role: str) -> list[tuple[float, float]]:
        """Returns first and last value of each quantity of a role.

        Of the launcher, these are medians of the first and the last quarter of its life. Of a rank,
        which lives until the next fault, they are medians over the first and the last third of all
        its lives, each looked at from when it has settled.
        """
        lives = [looks for each, looks in self.seen.values() if each == role]
        if len(lives) == 1:
            began = lives[0][0][0]
            settled = [used for when, used in lives[0] if when - began > SETTLED_SECONDS]
            part = max(1, len(settled) // 4)
        else:
            settled = []
            for looks in lives:
                old = [used for when, used in looks if when - looks[0][0] > SETTLED_SECONDS]
                settled += old[:3]  # some: a thread may come and go
            part = max(1, len(settled) // 3)
        if not settled:
            return []
        return [
            (
                statistics.median(each[index] for each in settled[:part]),
                statistics.median(each[index] for each in settled[-part:]),
            )
            for index in range(len(QUANTITIES))
        ]


@dataclass
class Soaked:
    """What became of the job of one engine."""

    engine: str
    code: int | None
    minutes: float
    faults: list[dict[str, object]]
    left: list[str]
    accuracy: float
    watch: Watch
    weights: str
    text: str


def _newest(output: Path) -> float:
    """When the newest checkpoint was written; 0 without any."""
    found = folders.checkpoints(output) if output.is_dir() else []
    return max((path.stat().st_mtime for _, path in found if path.exists()), default=0.0)


def strike(job: Job, engine: str, chance: random.Random) -> str | None:
    """Breaks something and returns what; None if it is not there at the moment."""
    kinds = ["SIGKILL", "SIGSTOP", "SIGTERM"]
    name = chance.choice([*kinds, "server", "scheduler"] if engine == "byteps" else kinds)
    if name in ("server", "scheduler"):
        victim, number = job.helper(name), signal.SIGKILL
        what = f"SIGKILL of the {name}"
    else:
        rank = chance.choice((0, 1))
        victim, number = job.rank(rank), signal.Signals[name]
        what = f"{name} of rank {rank}"
    if victim is None:
        return None
    os.kill(victim, number)
    return what


def soak(engine: str, epochs: int, seed: int, folder: Path) -> Soaked:
    """Runs one job to its end, and breaks it again and again."""
    chance = random.Random(f"{seed} {engine}")
    job = Job(engine, folder / engine, ["-np", "2", "--restarts", "1000"])
    watch, faults = Watch(job), []
    began = time.monotonic()
    job.start(*settings(epochs))
    assert job.process is not None
    job.wait_for(job.has_checkpoints)
    with watch.looking():
        while job.process.poll() is None:
            if _waited(job, chance.uniform(*BETWEEN)) and (what := strike(job, engine, chance)):
                minute, struck = (time.monotonic() - began) / 60, time.time()
                job.wait_for(lambda struck=struck: _newest(job.output) > struck)
                seconds = time.time() - struck
                row = engine, round(minute, 1), what, round(seconds, 1)
                faults.append(dict(zip(COLUMNS, row, strict=True)))
                print(" | ".join(map(str, row)), flush=True)
    code, minutes = job.end(), (time.monotonic() - began) / 60
    return _soaked(job, engine, code, minutes, faults, watch)


def _waited(job: Job, seconds: float) -> bool:
    """Waits, and returns whether the job still runs."""
    deadline = time.monotonic() + seconds
    assert job.process is not None
    while job.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    return job.process.poll() is None


def undisturbed(engine: str, epochs: int, folder: Path) -> Soaked:
    """Runs the same steps without pauses and faults."""
    job = Job(engine, folder / f"undisturbed-{engine}")
    watch, began = Watch(job), time.monotonic()
    job.start(*settings(epochs))
    with watch.looking():
        code = job.end(3600)
    return _soaked(job, engine, code, (time.monotonic() - began) / 60, [], watch)


def _soaked(
    job: Job,
    engine: str,
    code: int | None,
    minutes: float,
    faults: list[dict[str, object]],
    watch: Watch,
) -> Soaked:
    with (job.output / "history.csv").open(newline="") as file:
        accuracy = float(list(csv.DictReader(file))[-1]["val_accuracy"])
    text, left = job.text, job.left()
    return Soaked(engine, code, minutes, faults, left, accuracy, watch, weights(job.output), text)


def report(soaked: Sequence[Soaked], quiet: dict[bool, Soaked]) -> str:
    """Returns the tables."""
    lines = [
        "| engine | minutes | faults | median s to the next checkpoint | longest | exit code "
        "| accuracy | undisturbed | weights | left behind |",
        "|---" * 10 + "|",
    ]
    for each in soaked:
        other = quiet[each.engine == "mpi"]
        seconds = [float(str(row[COLUMNS[-1]])) for row in each.faults] or [0.0]
        cells = [
            each.engine,
            f"{each.minutes:.0f}",
            len(each.faults),
            f"{statistics.median(seconds):.0f}",
            f"{max(seconds):.0f}",
            each.code,
            f"{each.accuracy:.4f}",
            f"{other.accuracy:.4f}",
            "same" if each.weights == other.weights else "**others**",
            "; ".join(each.left) or "nothing",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| process | " + " | ".join(QUANTITIES) + " |", "|---" * 4 + "|"]
    named = [(each.engine, each) for each in soaked]
    named += [(f"{each.engine}, undisturbed", each) for each in quiet.values()]
    for name, each in named:
        for role in ("launcher", "rank 0", "rank 1"):
            pairs = [
                f"{first:.0f} to {last:.0f} ({last / first - 1:+.1%})"
                for first, last in each.watch.growth(role)
            ]
            lines.append(f"| {name}, {role} | " + " | ".join(pairs) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    """Runs the soak and writes soak.csv and soak.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of training, at least")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args(arguments)
    steps = options.minutes * 60 / STEP_SECONDS
    epochs = round(steps * BATCH / TRAINING_SAMPLES)
    before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        os.environ[PAUSE] = str(STEP_SECONDS * 32 / BATCH)
        with ThreadPoolExecutor(len(options.engines)) as pool:
            jobs = [
                pool.submit(soak, engine, epochs, options.seed, folder)
                for engine in options.engines
            ]
            soaked = [each.result() for each in jobs]
        del os.environ[PAUSE]
        quiet = {}
        for kind in {engine == "mpi" for engine in options.engines}:
            quiet[kind] = undisturbed("mpi" if kind else "collective", epochs, folder)
    for each in soaked:
        if each.code != 0:
            print(f"{each.engine}:\n{each.text[-3000:]}")
    with (options.out / "soak.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(row for each in soaked for row in each.faults)
    table = report(soaked, quiet)
    new = sorted(set(os.listdir("/dev/shm")) - before)
    table += f"\nNew in /dev/shm at the end: {', '.join(new) or 'nothing'}.\n"
    (options.out / "soak.md").write_text(table)
    print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
