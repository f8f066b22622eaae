"""What becomes of a running job when something breaks: see README.md.

    python expr/faults/run.py [--faults stop kill ...] [--engines byteps ...] [--out results.csv]

Needs root (launch/netlab.py says why), sshd, and all engines. Each row is added to the results as
it ends, in place of an older one of the same fault and engine.
"""

from __future__ import annotations

import argparse
import csv
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from faults import FAULTS, Fault, Scene, scene  # noqa: E402
from job import ENGINES, LONGEST, Job, weights  # noqa: E402

from ooodist.errors import UserError  # noqa: E402

COLUMNS = ("fault", "engine", "seconds", "code", "held", "missed", "left", "weights", "message")
LONGEST_MESSAGE = 600  # characters in the results


class Undisturbed:
    """The weights of a run that nothing disturbs: all engines but the pipeline's have the same."""

    def __init__(self) -> None:
        self._found: dict[bool, str] = {}

    def weights(self, engine: str) -> str:
        """Trains at the first call. Raises UserError if that fails."""
        is_pipeline = engine == "mpi"
        if is_pipeline not in self._found:
            with tempfile.TemporaryDirectory(dir="/tmp") as folder:
                job = Job("mpi" if is_pipeline else "collective", Path(folder, "out"))
                job.start()
                code = job.end()
                job.left()
                if code != 0:
                    raise UserError(f"the undisturbed job failed: {job.text[-2000:]}")
                self._found[is_pipeline] = weights(job.output)
        return self._found[is_pipeline]


def run_cell(fault: Fault, engine: str, undisturbed: Undisturbed) -> dict[str, object]:
    """Runs one cell and returns its row, without the names of fault and engine."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp", prefix="faults-") as name,
        scene(Path(name), with_hosts=fault.with_hosts) as place,
    ):
        output = place.folder / "out"
        try:
            return _run(fault, engine, place, output, undisturbed)
        finally:
            if output.is_mount():
                subprocess.run(["umount", str(output)], check=True)


def _run(
    fault: Fault, engine: str, place: Scene, output: Path, undisturbed: Undisturbed
) -> dict[str, object]:
    if fault.is_damage:
        before = place.job(engine, output)
        before.start()
        if not before.wait_for(before.has_checkpoints) or before.process is None:
            return _not_run(before)
        before.process.terminate()
        before.end()
        before.left()
    if fault.prepare is not None:
        fault.prepare(place, output)
    job = place.job(engine, output)
    began = time.monotonic()
    settings = [each.replace("FOLDER", str(place.folder)) for each in fault.settings]
    job.start(*settings, resume=fault.is_damage, options=fault.options, unread=fault.is_unread)
    if fault.strike is not None:
        if not fault.at_start and not job.wait_for(job.has_checkpoints):
            return _not_run(job)
        began = time.monotonic()
        began = fault.strike(place, job) or began
    code = job.end()
    seconds = time.monotonic() - began
    if code is None and job.process is not None:
        job.process.kill()
    left, messages = job.left(fault.clear), job.messages()
    if fault.may_interrupt_writing:
        left = [each for each in left if "/.incomplete" not in each]
    row: dict[str, object] = {
        "seconds": round(seconds, 1),
        "code": "none" if code is None else code,
        "left": "; ".join(left) or "nothing",
        "weights": _weights(fault, engine, place, output, undisturbed, code),
        "message": " / ".join(messages)[:LONGEST_MESSAGE],
    }
    missed = misses(fault, code, seconds, messages, row)
    return row | {"held": "no" if missed else "yes", "missed": ", ".join(missed)}


def misses(
    fault: Fault, code: int | None, seconds: float, messages: list[str], row: dict[str, object]
) -> list[str]:
    """Returns which of the bars are missed, in words."""
    missed = []
    if code is None:
        missed.append(f"it still ran after {LONGEST:g} s")
    elif fault.is_damage and code == 0:
        pass  # it went on from an older one, and the weights say whether rightly
    elif (code != fault.code) if fault.code is not None else code == 0:
        wanted = "another than 0" if fault.code is None else fault.code
        missed.append(f"code {code} instead of {wanted}")
    if fault.most is not None and seconds > fault.most:
        missed.append(f"more than {fault.most:g} s")
    if fault.names and not re.search(fault.names, " ".join(messages)):
        missed.append(f"no message names {fault.names}")
    if row["left"] != "nothing":
        missed.append("something is left")
    if row["weights"] not in ("same", "-"):
        missed.append("other weights")
    return missed


def _weights(
    fault: Fault,
    engine: str,
    place: Scene,
    output: Path,
    undisturbed: Undisturbed,
    code: int | None,
) -> str:
    """Resumes the job, and says whether its weights are those of the undisturbed one."""
    if not fault.is_resumed and fault.code != 0:
        return "-"
    if fault.repair is not None and not (fault.is_damage and code == 0):
        fault.repair(place, output)
    if code != 0:
        job = place.job(engine, output)
        job.start(resume=True)
        again = job.end()
        job.left()
        if again != 0:
            return f"--resume: code {again}: {' / '.join(job.messages())[:200]}"
    return "same" if weights(output) == undisturbed.weights(engine) else "others"


def _not_run(job: Job) -> dict[str, object]:
    """The row of a job that ended before anything was broken."""
    if job.process is not None:
        job.process.kill()
    code = job.end()
    job.left()
    return {
        "code": code,
        "held": "no",
        "missed": "it ended before the fault",
        "message": job.text[-LONGEST_MESSAGE:],
    }


def add(path: Path, row: dict[str, object]) -> None:
    """Adds a row to the results, in place of an older one of the same cell."""
    rows: list[dict[str, object]] = []
    if path.exists():
        with path.open(newline="") as file:
            rows = [dict(each) for each in csv.DictReader(file)]
    rows = [
        each for each in rows if (each["fault"], each["engine"]) != (row["fault"], row["engine"])
    ]
    rows.append(row)
    order = [(fault, engine) for fault in FAULTS for engine in ENGINES]
    rows.sort(key=lambda each: order.index((str(each["fault"]), str(each["engine"]))))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def main(arguments: list[str]) -> None:
    """Runs the cells that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--out", type=Path, default=HERE / "results.csv")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    undisturbed = Undisturbed()
    for name in options.faults:
        fault = FAULTS[name]
        for engine in options.engines:
            if engine in fault.engines:
                row = {"fault": name, "engine": engine}
                row |= run_cell(fault, engine, undisturbed)
                add(options.out, row)
                print(" | ".join(str(row.get(column, "")) for column in COLUMNS), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
