"""Compares pipeline schedules in tables, as text and as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ooodist.planner.pipeline.layer_costs import Link, ModelCosts
from ooodist.report.pipeline.outcomes import BASELINE, FREE_LINKS, Comparison, Outcome, Simulated
from ooodist.report.tables import aligned, milliseconds, readable_bytes

_MILLI = 1e3
_LONGEST_NAME = 24  # characters of a layer's name


def text(comparison: Comparison) -> str:
    """A table with a line for each schedule, and below it why some cannot be used."""
    lines = [("", *_heads([comparison]), "peak memory", "fits")]
    notes = []
    for outcome in comparison.outcomes:
        cells = _cells(comparison, outcome, [comparison])
        lines.append((outcome.name, *cells, "no" if outcome.refused else "yes"))
        if outcome.refused:
            notes.append(f"{outcome.name} cannot be used: {outcome.refused}")
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
        cells = [f"{each * _MILLI:.3f}" for each in seconds]
        lines.append((str(stage), str(rank), *cells, _layers(comparison.costs, part)))
    return aligned(lines, left=(0, 5))


def sweep_text(comparisons: Sequence[Comparison]) -> str:
    """A line for each setting with its best schedule, and the reasons where none fits."""
    heads = ("", "best", *_heads(comparisons), "memory")
    lines = [heads]
    notes = list(_notes(comparisons))
    for comparison in comparisons:
        title = comparison.setting.title
        if comparison.best is None:
            last = comparison.outcomes[-1]
            lines.append((title, *["-"] * (len(heads) - 1)))
            notes.append(f"nothing for {title}; {last.name}: {last.refused}")
        else:
            outcome, _ = comparison.best
            lines.append((title, outcome.name, *_cells(comparison, outcome, comparisons)))
    notes += _fastest_of_devices(comparisons)
    title = f"{comparisons[0].subject.title}, {comparisons[0].conditions}"
    return "\n".join([title, "", aligned(lines, left=(0, 1)), *(["", *notes] if notes else [])])


def csv_rows(comparisons: Sequence[Comparison]) -> Iterator[dict[str, object]]:
    """Yields a row for each schedule of each setting."""
    for comparison in comparisons:
        setting = comparison.setting
        for outcome in comparison.outcomes:
            row: dict[str, object] = {
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
                timeline, speed_up = simulated.timeline, comparison.speed_up(simulated)
                row |= {
                    "chunks": simulated.chunks,
                    "step_ms": f"{simulated.seconds * _MILLI:.6f}",
                    "exposed_exchange_ms": f"{timeline.exposed_exchange * _MILLI:.6f}",
                    "makespan_ms": f"{timeline.makespan * _MILLI:.6f}",
                    "throughput": f"{comparison.throughput(simulated):.6f}",
                    "speed_up": None if speed_up is None else f"{speed_up:.6f}",
                    "bubble": f"{timeline.bubble:.6f}",
                    "bubble_of_spans": f"{simulated.bubble_of_spans:.6f}",
                    "peak_bytes": simulated.peak_bytes,
                }
            yield row


def fastest(comparisons: Sequence[Comparison]) -> Comparison:
    """The setting with the largest throughput; at least one has a usable schedule."""

    def throughput(comparison: Comparison) -> float:
        return comparison.throughput(comparison.best[1]) if comparison.best else 0.0

    return max(comparisons, key=throughput)


def _heads(comparisons: Sequence[Comparison]) -> list[str]:
    """The heads of all cells but the last."""
    exposed = ["exposed"] if _have_replicas(comparisons) else []
    unit = comparisons[0].subject.unit
    return ["chunks", "ms/step", *exposed, unit, f"over {BASELINE}", "bubble", "of spans"]


def _cells(
    comparison: Comparison, outcome: Outcome, comparisons: Sequence[Comparison]
) -> list[str]:
    """A schedule's cells in a table of comparisons: as ``_heads``, and the peak memory."""
    if (simulated := outcome.simulated) is None:
        return ["-"] * (len(_heads(comparisons)) + 1)
    timeline, speed_up = simulated.timeline, comparison.speed_up(simulated)
    exposed = [milliseconds(timeline.exposed_exchange)] if _have_replicas(comparisons) else []
    return [
        str(simulated.chunks),
        milliseconds(simulated.seconds),
        *exposed,
        f"{comparison.throughput(simulated):.1f}",
        "-" if speed_up is None else f"{speed_up:.2f}x",
        f"{timeline.bubble:.1%}",
        f"{simulated.bubble_of_spans:.1%}",
        readable_bytes(simulated.peak_bytes) if simulated.peak_bytes else "-",
    ]


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
