"""Environment variables that ooodist chooses on a single host: what they cost and bring.

    python expr/at_home/variables.py cores [--jobs NAME ...] [--repeats 4]
    python expr/at_home/variables.py horovod

Each job runs with the default order and with each set of variables, in turns.

cores: all workers use all cores (``OOODIST_CORES=all``), or each has its own share, as usual.
horovod: none, those that a job on several hosts gets for its plan, and these without the ones of
Horovod's cycle.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from run import JOBS, ROOT, step_seconds

from ooodist.engines.kinds import find

PLANNED = find("horovod").planned_settings({})  # no launcher's variables: several hosts
WAYS = {
    "cores": {"all": {"OOODIST_CORES": "all"}, "own": {"OOODIST_CORES": "own"}},
    "horovod": {
        "none": {},
        "for plans": PLANNED,
        "without the cycle": {k: v for k, v in PLANNED.items() if "CYCLE" not in k},
    },
}
USUAL = {
    "cores": [name for name, job in JOBS.items() if job.settings and "bit/s" not in name],
    "horovod": ["quick start, Horovod", "GPT, Horovod", "MLP, horovodrun"],
}


def step_milliseconds(job: str, variables: dict[str, str]) -> float:
    """The median step of a whole job."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            JOBS[job].command("default", Path(folder)),
            cwd=ROOT,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    seconds = step_seconds(done.stdout)
    if done.returncode or seconds is None:
        sys.exit(done.stdout[-4000:])
    return seconds * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=WAYS)
    parser.add_argument("--jobs", nargs="+", choices=JOBS)
    parser.add_argument("--repeats", type=int, default=4)
    options = parser.parse_args()
    ways = WAYS[options.what]
    print(f"| job | {' | '.join(ways)} |\n|{'---|' * (1 + len(ways))}", flush=True)
    for job in options.jobs or USUAL[options.what]:
        found: dict[str, list[float]] = {way: [] for way in ways}
        for repeat in range(options.repeats):
            for way in list(ways)[:: 1 if repeat % 2 == 0 else -1]:
                found[way].append(step_milliseconds(job, ways[way]))
        cells = [
            f"{statistics.median(those):.1f} ({min(those):.1f} to {max(those):.1f})"
            for those in found.values()
        ]
        print(f"| {job} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
