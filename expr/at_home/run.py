"""Jobs as people run them on one machine: the default against ``order: planned``, in turns.

    python expr/at_home/run.py [--jobs NAME ...] [--repeats 2] [--no-trials] [--output DIR]
    python expr/at_home/run.py --rounds 24 [--jobs NAME ...] [--output DIR]

Three ways to run each job: ``default`` (order inorder), ``planned`` (order planned, and no other
setting) and, once, ``tried`` (planned, and planning may take as long as it likes), which shows what
the plans were predicted to take, and what they took. Whole jobs are timed, from the start of the
launcher to its end. Writes jobs.csv and tried.csv, and prints both as tables. With --rounds, a
trial is so long that noise hides less of how good the predictions are (long_trials.py); a job ends
with its first trial, and the file is rounds.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOROVODRUN = str(Path(sys.executable).parent / "horovodrun")
TRAIN = (sys.executable, "-m", "ooodist.train")
LONG_TRIALS = "expr/at_home/long_trials.py"
QUICKSTART = ("--config", "expr/quickstart/config.yaml", "--set", "steps_per_execution=null")
TRIED_EPOCHS = 3  # times as many epochs, as there must be time for measuring and a search
LONG_TRIAL_EPOCHS = 100
MOST_SECONDS = 600
ENDED = 143  # the code of a job that SIGTERM has ended


@dataclass(frozen=True)
class Job:
    """What a person starts.

    Attributes:
        launcher: with its options.
        settings: of the job file, of which ``order`` is set besides; none: it is script.py.
        epochs: of the training.
    """

    launcher: tuple[str, ...]
    settings: tuple[str, ...] = ()
    epochs: int = 12

    def command(self, way: str, folder: Path, rounds: int | None = None) -> list[str]:
        """Of one way to run it, whose output goes into the folder; rounds are those of a trial."""
        order = "inorder" if way == "default" else "planned"
        if not self.settings:
            return [*self.launcher, sys.executable, "expr/at_home/script.py", order]
        train = TRAIN if rounds is None else (sys.executable, LONG_TRIALS, str(rounds))
        epochs = self.epochs
        if way == "tried":
            epochs *= TRIED_EPOCHS if rounds is None else LONG_TRIAL_EPOCHS
        settings = [f"order={{name: {order}}}", f"epochs={epochs}", "report.tensorboard=false"]
        settings += [f"planning.profiles={folder / 'profiles'}"]
        settings += ["planning.share=1000"] if way == "tried" else []
        more = [part for setting in settings for part in ("--set", setting)]
        return [*self.launcher, *train, *self.settings, *more, "--output", str(folder / way)]


def local(workers: int, engine: str) -> tuple[str, ...]:
    return sys.executable, "launch/local.py", "-np", str(workers), "--engine", engine, "--"


def netlab(rate: str) -> tuple[str, ...]:
    script = "launch/netlab.py"
    return sys.executable, script, "-np", "2", "--engine", "horovod", "--rate", rate, "--"


def sets(*settings: str) -> tuple[str, ...]:
    return tuple(part for setting in settings for part in ("--set", setting))


MLP = sets("model={name: mlp, layers: [512, 512, 512]}", "batch=32")
GPT = sets(
    "model={name: gpt, layers: 3, width: 96, heads: 4}",
    "data={name: text, sequence_length: 64}",
    "batch=8",
    "steps_per_epoch=60",
    "optimizer={name: adam, learning_rate: 0.001}",
)
LSTM = sets("model={name: lstm, layers: 2}", "data={name: text, sequence_length: 32}", "batch=16")
JOBS = {
    "quick start, collective": Job(local(2, "collective"), QUICKSTART),
    "quick start, Horovod": Job(local(2, "horovod"), QUICKSTART),
    "quick start, BytePS": Job(local(2, "byteps"), QUICKSTART),
    "quick start, 4 workers": Job(local(4, "collective"), QUICKSTART, epochs=8),
    "MLP, horovodrun": Job(
        (str(Path(sys.executable).parent / "horovodrun"), "-np", "2"), MLP, epochs=40
    ),
    "MLP, 4 workers, BytePS": Job(local(4, "byteps"), MLP, epochs=30),
    "GPT, Horovod": Job(local(2, "horovod"), GPT, epochs=5),
    "LSTM, collective": Job(
        local(2, "collective"), (*LSTM, *sets("steps_per_epoch=100")), epochs=4
    ),
    "Keras script, collective": Job(local(2, "collective")),
    "quick start, Horovod at 1 Gbit/s": Job(netlab("1Gbit"), QUICKSTART),
    "quick start, Horovod at 100 Mbit/s": Job(netlab("100Mbit"), QUICKSTART),
}


@dataclass(frozen=True)
class Tried:
    """One line of a trial: seconds a step; predicted is None where nobody knew."""

    trial: int
    name: str
    measured: float
    predicted: float | None
    stays: bool


def read_tried(output: str) -> list[Tried]:
    """What the trials of a job came to, one after the other; empty if there was none."""
    found = []
    trials = re.findall(r"tried in training: (.*); (\w+) stays", output)
    for trial, (line, stays) in enumerate(trials, start=1):
        each = re.findall(r"(\w+) ([0-9.]+) ms a step(?: \(predicted ([0-9.]+)\))?", line)
        found += [
            Tried(
                trial, name, float(ms) / 1e3, float(guess) / 1e3 if guess else None, name == stays
            )
            for name, ms, guess in each
        ]
    return found


def step_seconds(output: str) -> float | None:
    """The median that a job reports; None if it does not, as the script."""
    found = re.search(r"speed +([0-9.]+) ms a step", output)
    return None if found is None else float(found[1]) / 1e3


def run(job: Job, way: str, folder: Path) -> tuple[float, str]:
    """Seconds of the whole job, and what it printed."""
    began = time.monotonic()
    done = subprocess.run(
        job.command(way, folder),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(job.command(way, folder))}\n{done.stdout[-4000:]}")
    return time.monotonic() - began, done.stdout


def first_trial(job: Job, rounds: int, folder: Path) -> str:
    """The line of the first trial, behind which the job is asked to end; empty if none came."""
    command, output = job.command("tried", folder, rounds), []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as started:

        def end() -> None:  # all processes, as horovodrun leaves mpirun alone
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGTERM)

        give_up = threading.Timer(MOST_SECONDS, end)
        give_up.start()
        assert started.stdout is not None
        for line in started.stdout:
            output.append(line)
            if read_tried(line):
                end()
                break
        output += started.stdout
        give_up.cancel()
    tried = next((line for line in output if read_tried(line)), "")
    if not tried and started.returncode not in (0, ENDED):
        sys.exit(f"{' '.join(command)}\n{''.join(output)[-4000:]}")
    return tried


def jobs_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Of jobs.csv: medians, and of each repeat's ratio the median."""
    lines = [
        "| job | default, s | planned, s | planned / default | a step |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["job"] for row in rows):
        of = {
            (row["way"], row["repeat"]): row for row in rows if row["job"] == name and row["repeat"]
        }
        repeats = sorted({repeat for _, repeat in of})

        def ratio(what: str, of: dict = of, repeats: list[str] = repeats) -> str:
            pairs = [(of["planned", r][what], of["default", r][what]) for r in repeats]
            ratios = [float(one) / float(other) for one, other in pairs if one and other]
            return f"{statistics.median(ratios):.2f}" if ratios else "-"

        seconds = [
            statistics.median(float(of[way, r]["seconds"]) for r in repeats)
            for way in ("default", "planned")
        ]
        cells = [*(f"{each:.1f}" for each in seconds), ratio("seconds"), ratio("step_seconds")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tried_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Of tried.csv: seconds, and as often as long as the first of the trial, whose turns it had."""
    lines = [
        "| job | trial | plan | predicted, ms | measured, ms | error | predicted, to the first "
        "| measured | error | stays |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    errors: list[float] = []
    ratio_errors: list[float] = []
    first: dict[tuple[str, str], Mapping[str, str]] = {}
    for row in rows:
        base = first.setdefault((row["job"], row["trial"]), row)
        measured = float(row["measured"])
        cells = [row["job"], row["trial"], row["plan"], "-", f"{measured * 1e3:.1f}", *("-" * 4)]
        if row["predicted"]:
            predicted = float(row["predicted"])
            errors.append(predicted / measured - 1)
            cells[3], cells[5] = f"{predicted * 1e3:.1f}", f"{errors[-1]:+.0%}"
        if row is not base and row["predicted"] and base["predicted"]:
            guess, took = predicted / float(base["predicted"]), measured / float(base["measured"])
            ratio_errors.append(guess / took - 1)
            cells[6:] = [f"{guess:.2f}", f"{took:.2f}", f"{ratio_errors[-1]:+.0%}"]
        lines.append(f"| {' | '.join([*cells, row['stays']])} |")
    for of, found in (("seconds", errors), ("ratios to the first of a trial", ratio_errors)):
        if found:
            sizes = [abs(error) for error in found]
            lines += [
                "",
                f"Errors of {len(sizes)} predicted {of}: median {statistics.median(sizes):.0%}, "
                f"largest {max(sizes):.0%}.",
            ]
    return "\n".join(lines)


def write(file: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Those of other jobs stay."""
    names = {row["job"] for row in rows}
    kept: list[Mapping[str, object]] = []
    if file.exists():
        with file.open(newline="", encoding="utf-8") as stream:
            kept = [row for row in csv.DictReader(stream) if row["job"] not in names]
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows([*kept, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--repeats", type=int, default=2, help="0: what is tried alone")
    parser.add_argument("--no-trials", action="store_true", help="whole jobs alone")
    parser.add_argument("--rounds", type=int, help="of a trial, whose first is all that is run")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    tried_file = "tried.csv"
    if options.rounds is not None:
        tried_file, options.repeats = "rounds.csv", 0
    files = options.output / "jobs.csv", options.output / tried_file
    for name in options.jobs:
        job = JOBS[name]
        timed: list[dict[str, object]] = []
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for repeat in range(options.repeats):
                for way in ("default", "planned")[:: 1 if repeat % 2 == 0 else -1]:
                    seconds, output = run(job, way, folder / str(repeat))
                    step = step_seconds(output)
                    print(f"{name}, {way}: {seconds:.1f} s", flush=True)
                    timed.append(
                        {"job": name, "way": way, "repeat": repeat}
                        | {"seconds": f"{seconds:.2f}", "step_seconds": step or ""}
                    )
            if timed:
                write(files[0], ("job", "way", "repeat", "seconds", "step_seconds"), timed)
            if job.settings and not options.no_trials:
                if options.rounds is None:
                    _, output = run(job, "tried", folder)
                else:
                    output = first_trial(job, options.rounds, folder)
                tried: list[dict[str, object]] = [
                    {"job": name, "trial": each.trial, "plan": each.name}
                    | {"predicted": each.predicted or ""}
                    | {"measured": each.measured, "stays": "yes" if each.stays else ""}
                    for each in read_tried(output)
                ]
                print(f"{name}: {tried or 'nothing was tried'}", flush=True)
                write(files[1], ("job", "trial", "plan", "predicted", "measured", "stays"), tried)
    for file, table in zip(files, (jobs_table, tried_table), strict=True):
        if file.exists():
            with file.open(newline="", encoding="utf-8") as stream:
                print(f"\n{table(list(csv.DictReader(stream)))}")


if __name__ == "__main__":
    main()
