"""Seconds from the start of the launcher to the end of the first epoch, of four steps.

    python expr/overhead/forked_start.py [--workers 2 4 8] [--engine collective] [--repeats 3]

In turns: each rank imports TensorFlow, as the launcher has it; and all ranks are forks of one
process that has imported it (``tests/fork_server.py``, which is started with the launcher).
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WAYS = {"each imports": "0", "forks": "1"}  # OOODIST_TESTS_FORK
# The server ends with the process that has started it, so that process starts the launcher.
START = """
import subprocess, sys
from tests.fork_server import fast_python
workers, engine, *train = sys.argv[1:]
launch = [sys.executable, "launch/local.py", "-np", workers, "--engine", engine, "--"]
sys.exit(subprocess.call([*launch, fast_python(), "-m", "ooodist.train", *train]))
"""
JOB = shlex.split(
    "--config expr/quickstart/config.yaml --set epochs=1 --set steps_per_epoch=4 "
    "--set report.trace=0 --set report.tensorboard=false --output"
)


def seconds_to_the_first_epoch(way: str, workers: int, engine: str) -> float:
    """Runs a job. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(prefix="ooodist-start-") as folder:
        command = [
            sys.executable,
            "-c",
            START,
            str(workers),
            engine,
            *JOB,
        ]
        variables = {"PYTHONPATH": str(ROOT), "OOODIST_TESTS_FORK": WAYS[way]}
        began, seconds = time.monotonic(), None
        with subprocess.Popen(
            [*command, folder],
            cwd=ROOT,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as job:
            assert job.stdout
            lines = []
            for line in job.stdout:
                lines.append(line)
                if seconds is None and "[0] epoch 1/1 step 4/4" in " ".join(line.split()):
                    seconds = time.monotonic() - began
        if seconds is None or job.returncode:
            raise RuntimeError("".join(lines))
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--engine", default="collective")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for workers in options.workers:
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(options.repeats):
            for way, times in found.items():
                times.append(seconds_to_the_first_epoch(way, workers, options.engine))
        row = ", ".join(f"{way} {statistics.median(times):.1f} s" for way, times in found.items())
        print(f"{workers} workers, {options.engine}: {row}", flush=True)


if __name__ == "__main__":
    main()
