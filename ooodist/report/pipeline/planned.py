"""Plans pipelines for some settings, and writes the schedules, pictures and Perfetto traces."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from ooodist.errors import UserError
from ooodist.planner.pipeline.actions import to_csv
from ooodist.report import plan_files
from ooodist.report.grid import time_grid
from ooodist.report.memory_picture import draw_memory
from ooodist.report.picture import write
from ooodist.report.pipeline import placement, table
from ooodist.report.pipeline.charts import pipeline_chart
from ooodist.report.pipeline.outcomes import (
    BASELINE,
    Comparison,
    Outcome,
    PipelineSubject,
    Setting,
    Simulated,
    compare,
)
from ooodist.report.pipeline.sweep import draw_sweep
from ooodist.report.plan_files import files_text, write_charts, written_to
from ooodist.report.tables import milliseconds, readable_bytes, write_csv
from ooodist.util import yaml_dataclass

logger = logging.getLogger("ooodist")


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
        logger.info("planning %s", setting.short)
        comparisons.append(compare(subject, setting, names))
    if all(comparison.best is None for comparison in comparisons):
        last = comparisons[-1].outcomes[-1]
        raise UserError(
            f"none of {', '.join(names)} can be used for {comparisons[-1].title}; "
            f"{last.name}: {last.refused}"
        )
    with written_to(output):
        output.mkdir(parents=True, exist_ok=True)
        rows = [row for comparison in comparisons for row in table.csv_rows(comparison)]
        write_csv(rows, output / plan_files.CSV_NAME)
        if len(comparisons) == 1:
            return _one(comparisons[0], output)
        return _sweep(comparisons, output)


def _one(comparison: Comparison, output: Path) -> str:
    assert comparison.best is not None
    outcome, simulated = comparison.best
    _write(comparison, output)
    files = list(plan_files.OF_PIPELINE)
    hosts = []
    if comparison.placement is not None:
        hosts.append(placement.text(comparison, simulated))
        files.append(plan_files.PLACEMENT_NAME)
    return "\n\n".join(
        [
            table.text(comparison),
            "\n".join([_title(comparison, outcome, simulated), *_without_barrier(simulated)]),
            time_grid(pipeline_chart(simulated, outcome.name)),
            table.stages_text(comparison, simulated),
            *hosts,
            files_text(output, files),
        ]
    )


def _sweep(comparisons: Sequence[Comparison], output: Path) -> str:
    usable = [comparison for comparison in comparisons if comparison.best is not None]
    for comparison in usable:
        folder = output / comparison.setting.folder
        folder.mkdir(exist_ok=True)
        _write(comparison, folder)
    title = f"{comparisons[0].subject.title}, {comparisons[0].conditions}"
    write(draw_sweep(comparisons, title), [output / name for name in plan_files.SWEEP_NAMES])
    fastest = table.fastest(comparisons)
    hosts = []
    if fastest.placement is not None and fastest.best is not None:
        title = f"placement of {fastest.setting.title}:"
        hosts.append(f"{title}\n{placement.text(fastest, fastest.best[1])}")
    folders = [comparison.setting.folder for comparison in usable]
    files = files_text(output, [*plan_files.SWEEP_NAMES, plan_files.CSV_NAME], folders)
    return "\n\n".join([table.sweep_text(comparisons), *hosts, files])


def _write(comparison: Comparison, folder: Path) -> None:
    """Writes the files for one setting."""
    assert comparison.best is not None
    logger.info("drawing %s", comparison.setting.short)
    schedule = comparison.best[1].plan.schedule
    (folder / plan_files.SCHEDULE_NAME).write_text(to_csv(schedule), encoding="utf-8")
    yaml_dataclass.write_file(comparison.costs, folder / plan_files.COSTS_NAME)
    if comparison.placement is not None:
        write_csv(placement.csv_rows(comparison), folder / plan_files.PLACEMENT_NAME)
    charts = [
        pipeline_chart(simulated, outcome.name, _title(comparison, outcome, simulated))
        for outcome, simulated in comparison.shown
    ]
    write_charts(charts, comparison.title, folder)
    memory = draw_memory(charts, comparison.costs.memory_limit, comparison.title)
    write(memory, [folder / name for name in plan_files.MEMORY_NAMES])


def _title(comparison: Comparison, outcome: Outcome, simulated: Simulated) -> str:
    """The schedule's name and the predictions for it."""
    speed_up = comparison.speed_up(simulated)
    words = [
        f"{outcome.name}: {milliseconds(simulated.plan.seconds)} ms a step",
        f"{comparison.throughput(simulated):.1f} {comparison.subject.unit}",
    ]
    if speed_up is not None and simulated is not comparison.baseline:
        words.append(f"{speed_up:.2f}x {BASELINE}")
    words.append(
        f"bubble {simulated.timeline.bubble:.1%} (of spans {simulated.bubble_of_spans:.1%})"
    )
    if simulated.timeline.exposed_exchange:
        words.append(f"exchange exposed {milliseconds(simulated.timeline.exposed_exchange)} ms")
    if simulated.peak_bytes:
        words.append(f"at most {readable_bytes(simulated.peak_bytes)}")
    if outcome.refused:
        words.append("does not fit")
    return ", ".join(words)


def _without_barrier(simulated: Simulated) -> list[str]:
    """A line with the period, if it is shorter than a step that begins with a barrier."""
    period = milliseconds(simulated.plan.period)
    if period == milliseconds(simulated.plan.seconds):
        return []
    return [
        f"without a barrier between steps: {period} ms a step (ranks need one only with "
        "global_clipnorm or loss scaling)"
    ]
