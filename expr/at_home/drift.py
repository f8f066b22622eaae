"""The quick start's job with ``order: planned``, while another program takes half of a core.

    python expr/at_home/drift.py [--engine horovod] [--neighbor 60]

The other program begins some seconds after the first plans have been tried, and ends so many
seconds after they have been tried again. Prints what the job says of plans, and when (seconds from
its start).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTLED_SECONDS = 30  # in which the job notes what steps take now
TRIED, AGAIN = "tried in training", "they are tried again"
# Half of a core: as much computing as waiting.
NEIGHBOR = """
import time
while True:
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    time.sleep(0.02)
"""


def command(engine: str, folder: str, epochs: int) -> list[str]:
    """The job: all the time for planning that it wants, and longer than it will be needed."""
    settings = (
        "steps_per_execution=null",
        "order={name: planned}",
        "planning.share=1000",
        f"planning.profiles={folder}/profiles",
        "report.tensorboard=false",
        "report.trace=0",
        f"epochs={epochs}",
    )
    return [
        *(sys.executable, "launch/local.py", "-np", "2", "--engine", engine, "--"),
        *(sys.executable, "-m", "ooodist.train", "--config", "expr/quickstart/config.yaml"),
        *(part for setting in settings for part in ("--set", setting)),
        *("--output", f"{folder}/output"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="horovod", choices=("collective", "horovod", "byteps"))
    parser.add_argument("--neighbor", type=float, default=60.0, help="seconds, see above")
    parser.add_argument("--seconds", type=float, default=480.0, help="of the job, at most")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen(
            command(options.engine, folder, epochs=10_000),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        neighbor: subprocess.Popen[bytes] | None = None
        try:
            lines = told(job, options.seconds)
            await_line(lines, TRIED)
            time.sleep(SETTLED_SECONDS)
            print("          another program takes half of a core from now on", flush=True)
            neighbor = subprocess.Popen([sys.executable, "-c", NEIGHBOR])
            await_line(lines, AGAIN)
            await_line(lines, TRIED)
            time.sleep(options.neighbor)
            neighbor.kill()
            print("          the other program has ended", flush=True)
            await_line(lines, AGAIN)
            await_line(lines, TRIED)
        finally:
            if neighbor is not None:
                neighbor.kill()
            os.killpg(job.pid, signal.SIGTERM)
            job.communicate()


def told(job: subprocess.Popen[str], seconds: float) -> Iterator[str]:
    """What the job says of plans, which is printed, until so many seconds have passed."""
    began = time.monotonic()
    assert job.stdout is not None
    for line in job.stdout:
        now = time.monotonic() - began
        if "planned: " in line or "tried" in line:
            print(f"{now:6.1f} s  {line.strip().removeprefix('[0] ooodist: ')}", flush=True)
            yield line
        if now > seconds:
            return


def await_line(lines: Iterator[str], text: str) -> None:
    """Reads up to one with this text; ends the program if there is none."""
    if not any(text in line for line in lines):
        sys.exit(f"nothing was said of '{text}'")


if __name__ == "__main__":
    main()
