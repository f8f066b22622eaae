"""Plans pipelines for some settings, and writes the schedules, figures and Perfetto traces."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import to_csv
from ooodist.report import perfetto
from ooodist.report.data_parallel.figure import write
from ooodist.report.data_parallel.plan_table import readable_bytes
from ooodist.report.data_parallel.planned import files_text, written_to
from ooodist.report.pipeline import table as pipeline_table
from ooodist.report.pipeline.figure import Panel, draw
from ooodist.report.pipeline.grid import time_grid
from ooodist.report.pipeline.memory_figure import draw_memory
from ooodist.report.pipeline.outcomes import (
    BASELINE,
    Comparison,
    Outcome,
    PipelineSubject,
    Setting,
    Simulated,
    compare,
)
from ooodist.report.pipeline.placement import placement_text
from ooodist.report.pipeline.placement import write_csv as write_placement
from ooodist.report.pipeline.sweep import draw_sweep
from ooodist.report.pipeline.tracks import pipeline_process
from ooodist.util import yaml_dataclass

logger = logging.getLogger("ooodist")

SCHEDULE_NAME = "schedule.csv"
COSTS_NAME = "costs.yaml"
PLACEMENT_NAME = "placement.csv"
CSV_NAME = "plans.csv"
FIGURE_NAMES = ("timeline.png", "timeline.svg")
MEMORY_NAMES = ("memory.png", "memory.svg")
SWEEP_NAMES = ("throughput.png", "throughput.svg")
TRACE_NAME = "timeline.json.gz"


def plan_pipelines(
    subject: PipelineSubject, settings: Sequence[Setting], names: Sequence[str], output: Path
) -> str:
    """Plans for each setting and writes the files.

    Args:
        subject: the model to plan for.
        settings: the pipeline sizes; if there are several, each has its own folder in ``output``.
        names: the schedules, as :func:`ooodist.report.pipeline.outcomes.compare` takes them.
        output: the folder for the files; it is created if need be, and files of an earlier run
            are replaced.

    Returns:
        The text to print.

    Raises:
        UserError: no schedule can be used in any setting, or the files cannot be written.
    """
    comparisons = []
    for setting in settings:
        logger.info("planning %s", _short(setting))
        comparisons.append(compare(subject, setting, names))
    if all(comparison.best is None for comparison in comparisons):
        last = comparisons[-1].outcomes[-1]
        raise UserError(
            f"none of {', '.join(names)} can be used for {comparisons[-1].title}; "
            f"{last.name}: {last.refused}"
        )
    with written_to(output):
        output.mkdir(parents=True, exist_ok=True)
        if len(comparisons) == 1:
            return _one(comparisons[0], output)
        return _sweep(comparisons, output)


def _one(comparison: Comparison, output: Path) -> str:
    assert comparison.best is not None
    outcome, simulated = comparison.best
    _write(comparison, output)
    pipeline_table.write_csv([comparison], output / CSV_NAME)
    files = [SCHEDULE_NAME, *FIGURE_NAMES, *MEMORY_NAMES, TRACE_NAME, CSV_NAME, COSTS_NAME]
    placement = []
    if comparison.placement is not None:
        placement.append(placement_text(comparison, simulated))
        files.append(PLACEMENT_NAME)
    return "\n\n".join(
        [
            pipeline_table.text(comparison),
            "\n".join([_title(comparison, outcome, simulated), *_without_barrier(simulated)]),
            time_grid(simulated),
            pipeline_table.stages_text(comparison, simulated),
            *placement,
            files_text(_KIND_OF_FILE, output, files),
        ]
    )


def _sweep(comparisons: Sequence[Comparison], output: Path) -> str:
    for comparison in comparisons:
        if comparison.best is not None:
            folder = output / comparison.setting.folder
            folder.mkdir(exist_ok=True)
            _write(comparison, folder)
    pipeline_table.write_csv(comparisons, output / CSV_NAME)
    title = f"{comparisons[0].subject.title}, {comparisons[0].conditions}"
    write(draw_sweep(comparisons, title), [output / name for name in SWEEP_NAMES])
    used = [each.setting.folder for each in comparisons if each.best is not None]
    folders = [f"{'folder':<9}{output / name}" for name in used]
    return "\n\n".join(
        [
            pipeline_table.sweep_text(comparisons),
            *_placement_of_the_fastest(comparisons),
            "\n".join([files_text(_KIND_OF_FILE, output, [*SWEEP_NAMES, CSV_NAME]), *folders]),
        ]
    )


def _placement_of_the_fastest(comparisons: Sequence[Comparison]) -> list[str]:
    fastest = pipeline_table.fastest(comparisons)
    if fastest.placement is None or fastest.best is None:
        return []
    title = f"placement of {fastest.setting.title}:"
    return [f"{title}\n{placement_text(fastest, fastest.best[1])}"]


def _write(comparison: Comparison, folder: Path) -> None:
    """Writes the files for one setting."""
    assert comparison.best is not None
    logger.info("drawing %s", _short(comparison.setting))
    schedule = comparison.best[1].plan.schedule
    (folder / SCHEDULE_NAME).write_text(to_csv(schedule), encoding="utf-8")
    yaml_dataclass.write_file(comparison.costs, folder / COSTS_NAME)
    if comparison.placement is not None:
        write_placement(comparison, folder / PLACEMENT_NAME)
    panels = [
        Panel(_title(comparison, outcome, simulated), simulated)
        for outcome, simulated in comparison.shown
    ]
    write(draw(panels, comparison.title), [folder / name for name in FIGURE_NAMES])
    memory = draw_memory(panels, comparison.costs.memory_limit, comparison.title)
    write(memory, [folder / name for name in MEMORY_NAMES])
    processes = [
        pipeline_process(simulated, number=number, title=outcome.name)
        for number, (outcome, simulated) in enumerate(comparison.shown)
    ]
    perfetto.write_perfetto(processes, folder / TRACE_NAME)


def _title(comparison: Comparison, outcome: Outcome, simulated: Simulated) -> str:
    """The schedule's name and the predictions for it."""
    speed_up = comparison.speed_up(simulated)
    words = [
        f"{outcome.name}: {pipeline_table.milliseconds(simulated.seconds)} ms a step",
        f"{comparison.throughput(simulated):.1f} {comparison.subject.unit}",
    ]
    if speed_up is not None and simulated is not comparison.baseline:
        words.append(f"{speed_up:.2f}x {BASELINE}")
    words.append(
        f"bubble {simulated.timeline.bubble:.1%} (of spans {simulated.bubble_of_spans:.1%})"
    )
    if simulated.timeline.exposed_exchange:
        exposed = pipeline_table.milliseconds(simulated.timeline.exposed_exchange)
        words.append(f"exchange exposed {exposed} ms")
    if simulated.peak_bytes:
        words.append(f"at most {readable_bytes(simulated.peak_bytes)}")
    if outcome.refused:
        words.append("does not fit")
    return ", ".join(words)


def _without_barrier(simulated: Simulated) -> list[str]:
    """A line with the period, if it is shorter than a step that begins with a barrier."""
    period = pipeline_table.milliseconds(simulated.plan.period)
    if period == pipeline_table.milliseconds(simulated.seconds):
        return []
    return [
        f"without a barrier between steps: {period} ms a step (ranks need one only with "
        "global_clipnorm or loss scaling)"
    ]


def _short(setting: Setting) -> str:
    words = [f"p={setting.ranks}, m={setting.microbatches}"]
    if setting.chunks is not None:
        words.append(f"v={setting.chunks}")
    if setting.replicas > 1:
        words.append(f"d={setting.replicas}")
    return ", ".join(words)


_KIND_OF_FILE = {
    SCHEDULE_NAME: "schedule",
    **dict.fromkeys((*FIGURE_NAMES, *SWEEP_NAMES), "picture"),
    **dict.fromkeys(MEMORY_NAMES, "memory"),
    TRACE_NAME: "trace",
    CSV_NAME: "table",
    COSTS_NAME: "costs",
    PLACEMENT_NAME: "ranks",
}
