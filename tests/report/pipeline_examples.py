"""Costs of layers, and simulated schedules, for the reports of pipelines."""

from __future__ import annotations

from ooodist.planner.pipeline.actions import Schedule
from ooodist.planner.pipeline.costs import PipelineCosts
from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts
from ooodist.planner.pipeline.plan import PipelinePlan
from ooodist.report.pipeline.outcomes import Comparison, PipelineSubject, Setting, Simulated
from ooodist.report.pipeline.outcomes import compare as compare_subject

ALL = ("gpipe", "1f1b", "zb_h1", "zb_v")


def equal_layers(
    number: int,
    seconds: float = 1.0,
    *,
    update: float = 0.0,
    kept: int = 0,
    base: int = 0,
    limit: int | None = None,
    link: Link | None = None,
    replicas: int = 1,
    sent: int = 1000,
) -> ModelCosts:
    """Layers with F = I = W, of which a micro-batch keeps so many bytes until the end of W."""
    layers = tuple(
        LayerCost(
            f"block_{place}",
            *(seconds, seconds, seconds, update),
            base_bytes=base,
            weight_bytes=kept,
            sent_bytes=sent,
            exchanged_bytes=100,
        )
        for place in range(number)
    )
    return ModelCosts(layers, link or Link(), limit, replicas=replicas)


def compare(
    costs: ModelCosts,
    ranks: int,
    microbatches: int,
    *names: str,
    chunks: int | None = None,
    batch: int | None = None,
    replicas: int = 1,
) -> Comparison:
    """The schedules of one setting."""
    batches = {microbatches: batch} if batch else None
    subject = PipelineSubject("layers", {microbatches: costs}, batches)
    return compare_subject(subject, Setting(ranks, microbatches, chunks, replicas), names)


def simulate(costs: ModelCosts, ranks: int, microbatches: int, name: str) -> Simulated:
    """A schedule by its name."""
    result = compare(costs, ranks, microbatches, name, replicas=costs.replicas)
    simulated = result.outcomes[0].simulated
    assert simulated is not None
    return simulated


def simulated_of(pipeline: tuple[Schedule, PipelineCosts]) -> Simulated:
    """Of any schedule and costs of its stages."""
    schedule, costs = pipeline
    parts = tuple(range(stage, stage + 1) for stage in range(schedule.stages))
    plan = PipelinePlan(parts, schedule, costs)
    return Simulated(plan, plan.timeline)
