"""Compares pipeline schedules in tables, as text and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from ooodist.planner.pipeline.layer_costs import Link, ModelCosts
from ooodist.report.data_parallel.plan_table import aligned, readable_bytes
from ooodist.report.pipeline.outcomes import BASELINE, FREE_LINKS, Comparison, Outcome, Simulated

_MILLI = 1e3
_LONGEST_NAME = 24  # characters of a layer's name


def text(comparison: Comparison) -> str:
    """A table with a line for each schedule, and below it why some cannot be used."""
    with_exchange = _have_replicas([comparison])
    head = _head(comparison.subject.unit, with_exchange=with_exchange)
    lines: list[tuple[str, ...]] = [("", *head, "peak memory", "fits")]
    for outcome in comparison.outcomes:
        cells = _cells(comparison, outcome, with_exchange=with_exchange)
        lines.append((outcome.name, *cells))
    notes = [
        f"{outcome.name} cannot be used: {outcome.refused}"
        for outcome in comparison.outcomes
        if outcome.refused
    ]
    notes += [
        "bubble: the share of the step's makespan in which ranks wait; "
        "of spans: of each rank's own time, from its first action to its last",
        *_note_on_exchanges([comparison]),
        *_note_on_sharding([comparison]),
        *_note_on_links(comparison),
    ]
    return "\n".join([comparison.title, "", aligned(lines), "", *notes])


def stages_text(comparison: Comparison, simulated: Simulated) -> str:
    """A line for each stage: its rank, milliseconds per micro-batch, and its layers."""
    plan = simulated.plan
    lines: list[tuple[str, ...]] = [("stage", "rank", "ms F", "ms I", "ms W", "layers")]
    for stage, (part, rank, cost) in enumerate(
        zip(plan.parts, plan.schedule.rank_of, plan.costs.stages, strict=True)
    ):
        seconds = (cost.forward, cost.input_gradient, cost.weight_gradient)
        milliseconds = [f"{each * _MILLI:.3f}" for each in seconds]
        lines.append((str(stage), str(rank), *milliseconds, _layers(comparison.costs, part)))
    return aligned(lines, left=(0, 5))


def sweep_text(comparisons: Sequence[Comparison]) -> str:
    """A line for each setting with its best schedule, and the reasons where none fits."""
    with_exchange = _have_replicas(comparisons)
    head = ("", "best", *_head(comparisons[0].subject.unit, with_exchange=with_exchange), "memory")
    lines: list[tuple[str, ...]] = [head]
    notes = [
        *_note_on_exchanges(comparisons),
        *_note_on_sharding(comparisons),
        *_note_on_links(comparisons[0]),
    ]
    for comparison in comparisons:
        title = comparison.setting.title
        if comparison.best is None:
            last = comparison.outcomes[-1]
            lines.append((title, *["-"] * (len(head) - 1)))
            notes.append(f"nothing for {title}; {last.name}: {last.refused}")
            continue
        outcome, _ = comparison.best
        *cells, _ = _cells(comparison, outcome, with_exchange=with_exchange)
        lines.append((title, outcome.name, *cells))
    notes += _fastest_of_devices(comparisons)
    title = f"{comparisons[0].subject.title}, {comparisons[0].conditions}"
    return "\n".join([title, "", aligned(lines, left=(0, 1)), *(["", *notes] if notes else [])])


def write_csv(comparisons: Sequence[Comparison], file: Path) -> None:
    """Writes a line for each schedule of each setting, replacing the file; raises OSError."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(
            [
                *("model", "ranks", "replicas", "shard_optimizer", "microbatches", "chunks"),
                *("schedule", "step_ms"),
                *(
                    "exposed_exchange_ms",
                    "makespan_ms",
                    "throughput",
                    "unit",
                    "speed_up",
                    "bubble",
                    "bubble_of_spans",
                ),
                *("peak_bytes", "memory_limit", "fits", "refused"),
            ]
        )
        for comparison in comparisons:
            setting, limit = comparison.setting, comparison.costs.memory_limit
            for outcome in comparison.outcomes:
                simulated = outcome.simulated
                chunks = setting.chunks if simulated is None else simulated.chunks
                writer.writerow(
                    [
                        *(comparison.subject.title, setting.ranks, setting.replicas),
                        *(
                            "yes" if setting.shard_optimizer else "no",
                            setting.microbatches,
                            chunks,
                            outcome.name,
                            *_numbers(comparison, simulated),
                        ),
                        *(limit, "no" if outcome.refused else "yes", outcome.refused),
                    ]
                )


def milliseconds(seconds: float) -> str:
    """Formats seconds as milliseconds: ``0.0123`` -> ``12.3``; short times get more digits."""
    return f"{seconds * _MILLI:.{1 if seconds >= 10 / _MILLI else 3}f}"


def fastest(comparisons: Sequence[Comparison]) -> Comparison:
    """The setting with the largest throughput; at least one has a usable schedule."""

    def throughput(comparison: Comparison) -> float:
        return comparison.throughput(comparison.best[1]) if comparison.best else 0.0

    return max(comparisons, key=throughput)


def _note_on_links(comparison: Comparison) -> list[str]:
    if comparison.costs.link != Link():
        return []
    return [f"{FREE_LINKS}: --bandwidth 10Gbit --latency 30us describes others"]


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


def _note_on_exchanges(comparisons: Sequence[Comparison]) -> list[str]:
    if not _have_replicas(comparisons):
        return []
    return [
        f"{comparisons[0].subject.unit}: of all replicas together; exposed: the milliseconds of a "
        "step in which all that is left is to exchange gradients with replicas"
    ]


def _note_on_sharding(comparisons: Sequence[Comparison]) -> list[str]:
    those = [comparison for comparison in comparisons if comparison.setting.shard_optimizer]
    if not those:
        return []
    state = sum(layer.optimizer_bytes for layer in those[0].costs.layers)
    if not state:
        return [
            "sharded optimizer: the layers have no optimizer_bytes, so there is nothing to divide"
        ]
    return [
        f"sharded optimizer: the replicas divide the model's {readable_bytes(state)} of optimizer "
        "state, here evenly; in a job, the state of a weight stays whole"
    ]


def _have_replicas(comparisons: Sequence[Comparison]) -> bool:
    return any(comparison.setting.replicas > 1 for comparison in comparisons)


def _head(unit: str, *, with_exchange: bool) -> tuple[str, ...]:
    """The text table's heads, from chunks to the bubble of spans."""
    exposed = ("exposed",) if with_exchange else ()
    return ("chunks", "ms/step", *exposed, unit, f"over {BASELINE}", "bubble", "of spans")


def _cells(comparison: Comparison, outcome: Outcome, *, with_exchange: bool) -> Iterator[str]:
    """Yields the text table's cells, from chunks to whether the schedule fits."""
    simulated = outcome.simulated
    if simulated is None:
        yield from ("-",) * (8 if with_exchange else 7)
    else:
        speed_up = comparison.speed_up(simulated)
        yield str(simulated.chunks)
        yield milliseconds(simulated.seconds)
        if with_exchange:
            yield milliseconds(simulated.timeline.exposed_exchange)
        yield f"{comparison.throughput(simulated):.1f}"
        yield "-" if speed_up is None else f"{speed_up:.2f}x"
        yield f"{simulated.timeline.bubble:.1%}"
        yield f"{simulated.bubble_of_spans:.1%}"
        yield readable_bytes(simulated.peak_bytes) if simulated.peak_bytes else "-"
    yield "no" if outcome.refused else "yes"


def _numbers(comparison: Comparison, simulated: Simulated | None) -> Iterator[object]:
    """Yields the CSV cells from step_ms to peak_bytes."""
    if simulated is None:
        yield from (None, None, None, None, comparison.subject.unit, None, None, None, None)
        return
    speed_up = comparison.speed_up(simulated)
    yield f"{simulated.seconds * _MILLI:.6f}"
    yield f"{simulated.timeline.exposed_exchange * _MILLI:.6f}"
    yield f"{simulated.timeline.makespan * _MILLI:.6f}"
    yield f"{comparison.throughput(simulated):.6f}"
    yield comparison.subject.unit
    yield None if speed_up is None else f"{speed_up:.6f}"
    yield f"{simulated.timeline.bubble:.6f}"
    yield f"{simulated.bubble_of_spans:.6f}"
    yield simulated.peak_bytes


def _layers(costs: ModelCosts, part: range) -> str:
    first, last = (costs.layers[place].name for place in (part.start, part.stop - 1))
    names = [
        name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
        for name in dict.fromkeys((first, last))
    ]
    return " … ".join(names) + (f" ({len(part)})" if len(part) > 1 else "")
