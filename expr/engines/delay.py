"""Whether exchanges in flight hide each other's trips: emulated hosts that are far apart.

    python expr/engines/delay.py [--delays 5ms 20ms] [--workers 2 3] [--engines NAME ...]

Needs root (launch/netlab.py says why). Sixteen tensors of 4 KiB are exchanged one after the other
and all in flight; what they take is nearly all trips. The table is printed, and written to
delay.csv; a run goes on where delay.csv ends.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for expr/lab, which is not installed

from delay_worker import COUNT

from expr.lab.network import Lab
from ooodist.errors import UserError

HERE = Path(__file__).resolve().parent

RATE = "250Mbit"
LONGEST = 120.0  # seconds of one job
FILE = HERE / "delay.csv"
COLUMNS = ("engine", "workers", "delay", "one_by_one_ms", "together_ms")
# By name: the engine, and variables of its environment.
ENGINES: dict[str, tuple[str, dict[str, str]]] = {
    "horovod, without fusion": ("horovod", {"HOROVOD_FUSION_THRESHOLD": "0"}),
    "horovod": ("horovod", {}),
    "collective": ("collective", {}),
    "byteps": ("byteps", {}),
}


def run(lab: Lab, name: str) -> dict[str, float]:
    """Seconds of all exchanges, one by one and together."""
    engine, variables = ENGINES[name]
    with tempfile.TemporaryDirectory(prefix="ooodist-delay-") as folder:
        result = Path(folder) / "seconds.json"
        command = [sys.executable, str(HERE / "delay_worker.py"), str(result)]
        quietly = {"TF_CPP_MIN_LOG_LEVEL": "2"}
        job = lab.start(engine, command, Path(folder), quietly | variables)
        if job.wait(LONGEST) != 0:
            log = (Path(folder) / "0.log").read_text(encoding="utf-8")
            raise UserError(f"{name}: {job.failure}\n{log}")
        seconds: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
        return seconds


def main() -> None:
    """Runs the cases and prints the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delays", nargs="+", default=["5ms", "20ms"], help="from host to host")
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    options = parser.parse_args()
    done = set()
    if FILE.exists():
        with FILE.open(newline="", encoding="utf-8") as stream:
            done = {tuple(row[name] for name in COLUMNS[:3]) for row in csv.DictReader(stream)}
    with FILE.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        if not done:
            writer.writerow(COLUMNS)
        print(f"{COUNT} tensors: {', '.join(COLUMNS)}")
        for name in options.engines:
            for workers in options.workers:
                for delay in options.delays:
                    if (name, str(workers), delay) in done:
                        continue
                    with Lab(workers, RATE, delay) as lab:
                        seconds = run(lab, name)
                    milliseconds = [f"{each * 1e3:.1f}" for each in seconds.values()]
                    writer.writerow([name, workers, delay, *milliseconds])
                    stream.flush()
                    print(name, workers, delay, *milliseconds, sep=", ", flush=True)


if __name__ == "__main__":
    main()
