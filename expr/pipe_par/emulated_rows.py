"""Carries out plans on emulated devices, for emulated.py and weak_scaling.py, and keeps the times.

Seconds are stretched: by so much that a process's wait for a core is short compared with them.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpirun import command, environment

from ooodist.planner.pipeline.actions import to_csv
from ooodist.planner.pipeline.plan import PipelinePlan
from ooodist.util import yaml_dataclass

COLUMNS = (  # of a row's line, besides those of its setting
    *("row", "chunks", "placement", "repeat", "seconds", "simulated", "bubble"),
    *("simulated_bubble", "overhead", "peak_bytes", "factor", "processor"),
)


def shortest_action(plans: Iterable[PipelinePlan]) -> float:
    """Seconds of the shortest F of any stage."""
    return min(stage.forward for plan in plans for stage in plan.costs.stages)


def run_rows(plans: Mapping[str, PipelinePlan], repeats: int) -> Iterator[dict[str, Any]]:
    """Carries out plans of one number of ranks in turn, over and over.

    Args:
        plans: what is compared, by the name of its row, with stretched costs.
        repeats: of each plan.

    Yields:
        what was measured of each row and repeat, as soon as it is known; see emulated_worker.py.
    """
    (ranks,) = {plan.schedule.ranks for plan in plans.values()}
    with tempfile.TemporaryDirectory(prefix="ooodist-emulated-") as name:
        folder = Path(name)
        for row, plan in plans.items():
            text = yaml_dataclass.dump(plan.costs)
            (folder / f"{row}.csv").write_text(to_csv(plan.schedule), encoding="utf-8")
            (folder / f"{row}.yaml").write_text(text, encoding="utf-8")
        start = command(ranks, "emulated_worker.py", folder, repeats)
        with subprocess.Popen(start, stdout=subprocess.PIPE, text=True, env=environment()) as job:
            assert job.stdout is not None
            for line in job.stdout:
                found = json.loads(line)
                yield {**found, **_described(plans[found["row"]])}
    if job.returncode:
        raise SystemExit(f"{', '.join(plans)}: the job ended with exit code {job.returncode}")


def _described(plan: PipelinePlan) -> dict[str, object]:
    timeline, schedule = plan.timeline, plan.schedule
    in_turn = tuple(stage % schedule.ranks for stage in range(schedule.stages))
    return {
        "chunks": schedule.stages // schedule.ranks,
        "placement": "in turn" if schedule.rank_of == in_turn else "V",
        "simulated": timeline.step_seconds,
        "simulated_bubble": timeline.bubble,
        "peak_bytes": max(timeline.peak_bytes),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def keep_lines(
    file: Path, columns: Sequence[str], is_kept: Callable[[Mapping[str, str]], bool]
) -> None:
    """Leaves only some lines in a CSV file, which is made if there is none."""
    lines = []
    if file.exists():
        with file.open(newline="", encoding="utf-8") as stream:
            lines = list(filter(is_kept, csv.DictReader(stream)))
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def add_lines(file: Path, columns: Sequence[str], lines: Iterable[Mapping[str, object]]) -> None:
    """Adds lines to a CSV file, each as soon as it is known."""
    with file.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        for line in lines:
            writer.writerow(line)
            stream.flush()
