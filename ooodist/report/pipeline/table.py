"""Compares pipeline schedules in tables, as text and as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ooodist.planner.pipeline.layer_costs import Link, ModelCosts
from ooodist.report.pipeline.outcomes import BASELINE, FREE_LINKS, Comparison, Simulated
from ooodist.report.tables import Columns, aligned, cells, milliseconds, readable_bytes

_MILLI = 1e3
_LONGEST_NAME = 24  # characters of a layer's name


def text(comparison: Comparison) -> str:
    """A table with a line for each schedule, and below it why some cannot be used."""
    columns: Columns = {**_columns([comparison]), "fits": ("fits", str)}
    rows = csv_rows(comparison)
    lines = [("", *columns), *((row["schedule"], *cells(row, columns)) for row in rows)]
    notes = [
        f"{row['schedule']} cannot be used: {row['refused']}" for row in rows if row["refused"]
    ]
    notes.append(
        "bubble: the share of the step's makespan in which ranks wait; "
        "of spans: of each rank's own time, from its first action to its last"
    )
    notes += _notes([comparison])
    return "\n".join([comparison.title, "", aligned(lines), "", *notes])


def stages_text(comparison: Comparison, simulated: Simulated) -> str:
    """A line for each stage: its rank, milliseconds per micro-batch, and its layers."""
    plan = simulated.plan
    lines: list[tuple[str, ...]] = [("stage", "rank", "ms F", "ms I", "ms W", "layers")]
    for stage, (part, rank, cost) in enumerate(
        zip(plan.parts, plan.schedule.rank_of, plan.costs.stages, strict=True)
    ):
        seconds = (cost.forward, cost.input_gradient, cost.weight_gradient)
        times = [f"{each * _MILLI:.3f}" for each in seconds]
        lines.append((str(stage), str(rank), *times, _layers(comparison.costs, part)))
    return aligned(lines, left=(0, 5))


def sweep_text(comparisons: Sequence[Comparison]) -> str:
    """A line for each setting with its best schedule, and the reasons where none fits."""
    columns = _columns(comparisons)
    columns["memory"] = columns.pop("peak memory")
    lines = [("", "best", *columns)]
    notes = list(_notes(comparisons))
    for comparison in comparisons:
        title = comparison.setting.title
        if comparison.best is None:
            last = comparison.outcomes[-1]
            lines.append((title, *["-"] * (1 + len(columns))))
            notes.append(f"nothing for {title}; {last.name}: {last.refused}")
        else:
            best = comparison.best[0].name
            row = next(row for row in csv_rows(comparison) if row["schedule"] == best)
            lines.append((title, best, *cells(row, columns)))
    notes += _fastest_of_devices(comparisons)
    title = f"{comparisons[0].subject.title}, {comparisons[0].conditions}"
    return "\n".join([title, "", aligned(lines, left=(0, 1)), *(["", *notes] if notes else [])])


def csv_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """A row for each schedule."""
    setting, rows = comparison.setting, []
    for outcome in comparison.outcomes:
        row = {
            "model": comparison.subject.title,
            "ranks": setting.ranks,
            "replicas": setting.replicas,
            "shard_optimizer": "yes" if setting.shard_optimizer else "no",
            "microbatches": setting.microbatches,
            "chunks": setting.chunks,
            "schedule": outcome.name,
            **dict.fromkeys(("step_ms", "exposed_exchange_ms", "makespan_ms", "throughput")),
            "unit": comparison.subject.unit,
            **dict.fromkeys(("speed_up", "bubble", "bubble_of_spans", "peak_bytes")),
            "memory_limit": comparison.costs.memory_limit,
            "fits": "no" if outcome.refused else "yes",
            "refused": outcome.refused,
        }
        if (simulated := outcome.simulated) is not None:
            timeline = simulated.timeline
            row |= {
                "chunks": simulated.chunks,
                "step_ms": simulated.plan.seconds * _MILLI,
                "exposed_exchange_ms": timeline.exposed_exchange * _MILLI,
                "makespan_ms": timeline.makespan * _MILLI,
                "throughput": comparison.throughput(simulated),
                "speed_up": comparison.speed_up(simulated),
                "bubble": timeline.bubble,
                "bubble_of_spans": simulated.bubble_of_spans,
                "peak_bytes": simulated.peak_bytes,
            }
        rows.append(row)
    return rows


def fastest(comparisons: Sequence[Comparison]) -> Comparison:
    """The setting with the largest throughput; at least one has a usable schedule."""

    def throughput(comparison: Comparison) -> float:
        return comparison.throughput(comparison.best[1]) if comparison.best else 0.0

    return max(comparisons, key=throughput)


def _columns(comparisons: Sequence[Comparison]) -> Columns:
    """What texts show of each schedule."""
    columns: Columns = {
        "chunks": ("chunks", str),
        "ms/step": ("step_ms", lambda ms: milliseconds(ms / _MILLI)),
        "exposed": ("exposed_exchange_ms", lambda ms: milliseconds(ms / _MILLI)),
        comparisons[0].subject.unit: ("throughput", "{:.1f}".format),
        f"over {BASELINE}": ("speed_up", "{:.2f}x".format),
        "bubble": ("bubble", "{:.1%}".format),
        "of spans": ("bubble_of_spans", "{:.1%}".format),
        "peak memory": ("peak_bytes", lambda number: readable_bytes(number) if number else "-"),
    }
    if not _have_replicas(comparisons):
        del columns["exposed"]
    return columns


def _notes(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yields what there is to know of a table of comparisons."""
    first = comparisons[0]
    if _have_replicas(comparisons):
        yield (
            f"{first.subject.unit}: of all replicas together; exposed: the milliseconds of a "
            "step in which all that is left is to exchange gradients with replicas"
        )
    if any(comparison.setting.shard_optimizer for comparison in comparisons):
        state = sum(layer.optimizer_bytes for layer in first.costs.layers)
        yield "sharded optimizer: " + (
            f"the replicas divide the model's {readable_bytes(state)} of optimizer "
            "state, here evenly; in a job, the state of a weight stays whole"
            if state
            else "the layers have no optimizer_bytes, so there is nothing to divide"
        )
    if first.costs.link == Link():
        yield f"{FREE_LINKS}: --bandwidth 10Gbit --latency 30us describes others"


def _have_replicas(comparisons: Sequence[Comparison]) -> bool:
    return any(comparison.setting.replicas > 1 for comparison in comparisons)


def _fastest_of_devices(comparisons: Sequence[Comparison]) -> list[str]:
    """A line with the fastest setting, if all divide the same devices and micro-batches."""
    settings = [comparison.setting for comparison in comparisons]
    divided = {(each.ranks * each.replicas, each.microbatches * each.replicas) for each in settings}
    if len({each.ranks for each in settings}) == 1 or len(divided) > 1:
        return []
    best = fastest(comparisons)
    assert best.best is not None
    setting, batches, (outcome, simulated) = best.setting, best.subject.batches, best.best
    keys = f"pipeline: {setting.ranks}, data: {setting.replicas}, "
    keys += f"microbatches: {setting.microbatches}, schedule: {outcome.name}"
    if setting.chunks is not None:
        keys += f", chunks: {setting.chunks}"
    if best.costs.memory_limit is not None:
        keys += f", memory_bytes: {best.costs.memory_limit}"
    if setting.shard_optimizer:
        keys += ", shard_optimizer: true"
    batch = f"--set batch={batches[setting.microbatches]} " if batches else ""
    return [
        f"fastest on {setting.ranks * setting.replicas} devices: {setting.title}, with "
        f"{best.throughput(simulated):.1f} {best.subject.unit}; for the job: {batch}"
        f"--set 'parallel={{{keys}}}'"
    ]


def _layers(costs: ModelCosts, part: range) -> str:
    first, last = (costs.layers[place].name for place in (part.start, part.stop - 1))
    names = [
        name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
        for name in dict.fromkeys((first, last))
    ]
    return " … ".join(names) + (f" ({len(part)})" if len(part) > 1 else "")
