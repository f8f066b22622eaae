"""The files that planning writes, for data parallel training and for pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ooodist.errors import UserError
from ooodist.report.chart import Chart
from ooodist.report.perfetto import write_perfetto
from ooodist.report.picture import draw, write

PLAN_NAME = "plan.yaml"
SCHEDULE_NAME = "schedule.csv"
FIGURE_NAMES = ("timeline.png", "timeline.svg")
MEMORY_NAMES = ("memory.png", "memory.svg")
SWEEP_NAMES = ("throughput.png", "throughput.svg")
TRACE_NAME = "timeline.json.gz"
CSV_NAME = "plans.csv"
COSTS_NAME = "costs.yaml"
PLACEMENT_NAME = "placement.csv"
OF_CLUSTER = (PLAN_NAME, *FIGURE_NAMES, TRACE_NAME, CSV_NAME, COSTS_NAME)
OF_PIPELINE = (SCHEDULE_NAME, *FIGURE_NAMES, *MEMORY_NAMES, TRACE_NAME, CSV_NAME, COSTS_NAME)
_CONTENTS = {
    PLAN_NAME: "plan",
    SCHEDULE_NAME: "schedule",
    **dict.fromkeys((*FIGURE_NAMES, *SWEEP_NAMES), "picture"),
    **dict.fromkeys(MEMORY_NAMES, "memory"),
    TRACE_NAME: "trace",
    CSV_NAME: "table",
    COSTS_NAME: "costs",
    PLACEMENT_NAME: "ranks",
}


@contextmanager
def written_to(output: Path) -> Iterator[None]:
    """Turns an OSError from writing there into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"--output is {output}, where nothing can be written ({error.strerror}); "
            "give a folder that can be written to"
        ) from error


def write_charts(
    charts: Sequence[Chart], title: str, folder: Path, seconds: float | None = None
) -> None:
    """Writes charts as a picture and as a trace.

    Args:
        charts: what to show.
        title: the title of the picture.
        folder: where to write.
        seconds: how much time the picture shows; None: all.

    Raises:
        OSError: the files cannot be written.
    """
    write(draw(charts, title, seconds), [folder / name for name in FIGURE_NAMES])
    write_perfetto(charts, folder / TRACE_NAME)


def files_text(output: Path, names: Iterable[str], folders: Iterable[str] = ()) -> str:
    """A line for each file, with what it has, and for each folder."""
    described = [*((_CONTENTS[name], name) for name in names), *(("folder", f) for f in folders)]
    return "\n".join(f"{content:<9}{output / name}" for content, name in described)
