"""Plans stages and a schedule for a model: all ranks measure, rank 0 decides, all follow."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.pipeline.layers.in_parts import is_small, measure_in_parts, measure_small
from ooodist.pipeline.layers.measure import FEW_LAYER_STEPS, LAYER_STEPS
from ooodist.pipeline.stages import Call, Stage, calls_of, parts_of_split
from ooodist.planner.pipeline.actions import from_csv, to_csv
from ooodist.planner.pipeline.costs import LacksMemory, PipelineCosts, equal_stages
from ooodist.planner.pipeline.layer_costs import (
    ModelCosts,
    read_model_costs,
    with_sharded_optimizer,
)
from ooodist.planner.pipeline.plan import (
    Finder,
    PipelinePlan,
    chunks_of_split,
    first_plan,
    make_plan,
    placed,
    reschedule,
)
from ooodist.planner.pipeline.search import auto, best_known
from ooodist.settings.sections import ParallelConfig
from ooodist.step.all_ranks.objects import text_of_rank
from ooodist.step.optimizer import needs_all_gradients
from ooodist.util import yaml_dataclass

logger = logging.getLogger("ooodist")

# The part of a memory limit that layers may fill: a stage takes some percent more, for messages,
# workspace and what layers do not keep when they are measured in parts (1.3 % of 11 GPT blocks).
LAYERS_FILL = 0.97


def plan_stages(
    model: keras.Model,
    batch: Any,
    parallel: ParallelConfig,
    engine: Engine,
    *,
    is_live: bool = False,
    skips: bool = False,
) -> PipelinePlan:
    """The stages, their ranks, and a first schedule; all ranks call it, and get the same.

    Args:
        model: compiled; it stays as it is.
        batch: as its data set yields it.
        parallel: the job's settings.
        engine: the engine of the job.
        is_live: the schedule ``auto`` is provisional: the best of the known ones.
        skips: updates whose gradients are not finite are left out.

    Raises:
        UserError: the model cannot be split, or does not fit into the memory limit; on all ranks.
    """
    has_barrier = needs_all_gradients(model.optimizer, skips=skips)

    def plan_layers(costs: ModelCosts) -> PipelinePlan:
        return _plan_layers(replace(costs, has_barrier=has_barrier), parallel, is_live=is_live)

    if parallel.split is not None:
        return _decided_by_rank_0(
            lambda: _plan_split(model, parallel, is_live=is_live, has_barrier=has_barrier), engine
        )
    if parallel.costs is not None:
        file = Path(parallel.costs)
        return _decided_by_rank_0(lambda: plan_layers(read_costs(file, calls_of(model))), engine)
    logger.info("pipeline: measuring the layers of %s", model.name)
    began = time.perf_counter()
    steps = FEW_LAYER_STEPS if is_live else LAYER_STEPS
    microbatches, alone = parallel.microbatches, None
    with engine.agreed():
        small = is_small(model)
    if small:
        layers, alone = measure_small(model, batch, microbatches, engine, steps=steps)
    else:
        ranks = parallel.pipeline
        layers = measure_in_parts(model, batch, microbatches, engine, ranks, steps=steps)
    logger.info("pipeline: measured the layers in %.1f s", time.perf_counter() - began)
    plan = _decided_by_rank_0(lambda: plan_layers(ModelCosts(layers)), engine)
    return replace(plan, seconds_alone=alone)


def read_costs(file: Path, calls: Sequence[Call]) -> ModelCosts:
    """Reads ``parallel.costs``, a file as ``python -m ooodist.plan`` writes it.

    Args:
        file: costs of layers.
        calls: the calls of the model whose costs they must be.

    Raises:
        UserError: the file cannot be read, or has the costs of other layers.
    """
    costs = read_model_costs(file, "parallel.costs")
    found, wanted = ([each.name for each in those] for those in (costs.layers, calls))
    for number, (one, other) in enumerate(itertools.zip_longest(found, wanted)):
        if one != other:
            there = "ends" if one is None else f"is {one}"
            here = "the model ends" if other is None else f"that of the model is {other}"
            raise UserError(
                f"parallel.costs {file} has the costs of {len(found)} layers, of which number "
                f"{number} {there}, but {here}; measure them with python -m ooodist.plan, or leave "
                "parallel.costs out"
            )
    return costs


def plan_schedule(
    plan: PipelinePlan,
    costs: PipelineCosts,
    parallel: ParallelConfig,
    engine: Engine,
    first_trained: int = 0,
    find: Finder = auto,
) -> PipelinePlan:
    """The same stages with a schedule for their measured costs; see plan_stages.

    Args:
        plan: plan of the stages when all of them are trained.
        costs: costs of the stages.
        parallel: the job's settings.
        engine: the engine of the job.
        first_trained: stages before this one only run forward.
        find: how a schedule is found if its name is ``auto``.
    """
    found = _decided_by_rank_0(
        lambda: reschedule(plan, parallel.schedule, costs, first_trained, find), engine
    )
    return replace(found, seconds_alone=plan.seconds_alone)


def _decided_by_rank_0(make: Callable[[], PipelinePlan], engine: Engine) -> PipelinePlan:
    return _from_text(text_of_rank(engine, lambda: _to_text(make())))


def _plan_split(
    model: keras.Model, parallel: ParallelConfig, *, is_live: bool, has_barrier: bool
) -> PipelinePlan:
    parts = parts_of_split(calls_of(model), parallel.split or ())
    chunks_of_split(len(parts), parallel.pipeline)
    # Equal costs, until they are measured.
    costs = replace(
        equal_stages(len(parts)), memory_limit=parallel.memory_bytes, has_barrier=has_barrier
    )
    find = best_known if is_live else auto
    return placed(parts, costs, parallel.pipeline, parallel.microbatches, parallel.schedule, find)


def _plan_layers(costs: ModelCosts, parallel: ParallelConfig, *, is_live: bool) -> PipelinePlan:
    """Plans with some of the memory left free, if there is such a plan."""
    costs = replace(costs, recompute=parallel.recompute)
    if parallel.shard_optimizer:
        costs = with_sharded_optimizer(costs, parallel.data)
    ranks, microbatches, limit = parallel.pipeline, parallel.microbatches, parallel.memory_bytes

    def plan_within(num_bytes: int | None) -> PipelinePlan:
        limited = replace(costs, memory_limit=num_bytes)
        if is_live:
            return first_plan(limited, ranks, microbatches, parallel.chunks)
        return make_plan(limited, ranks, microbatches, parallel.schedule, parallel.chunks)

    if limit is None:
        return plan_within(None)
    try:
        plan = plan_within(round(limit * LAYERS_FILL))
    except LacksMemory:
        return plan_within(limit)
    return replace(plan, costs=replace(plan.costs, memory_limit=limit))


def _to_text(plan: PipelinePlan) -> str:
    return json.dumps(
        {
            "name": plan.schedule.name,
            "ends": [part.stop for part in plan.parts],
            "schedule": to_csv(plan.schedule),
            "costs": yaml_dataclass.plain(plan.costs),
        }
    )


def _from_text(text: str) -> PipelinePlan:
    values = json.loads(text)
    begins = [0, *values["ends"][:-1]]
    schedule = from_csv(values["schedule"], values["name"])
    parts = tuple(map(range, begins, values["ends"]))
    return PipelinePlan(parts, schedule, yaml_dataclass.read(PipelineCosts, values["costs"]))


def write_schedule(plan: PipelinePlan, file: Path) -> None:
    """Writes the schedule as CSV, a file that ``parallel.schedule`` takes."""
    file.write_text(to_csv(plan.schedule), encoding="utf-8")


def log_plan(plan: PipelinePlan, stages: Sequence[Stage], step_seconds: float) -> None:
    """Logs the stages and the schedule.

    Args:
        plan: with measured costs.
        stages: the stages of the plan.
        step_seconds: predicted.
    """
    costs = plan.costs.stages
    for stage, position, cost in zip(stages, plan.schedule.rank_of, costs, strict=True):
        names = f"{stage.calls[0].name} to {stage.calls[-1].name}"
        logger.info(
            "rank %d, stage %d: %s; F %.1f, I %.1f, W %.1f ms a micro-batch, sends %.2f MB%s",
            position,
            stage.number,
            names,
            cost.forward * 1e3,
            cost.input_gradient * 1e3,
            cost.weight_gradient * 1e3,
            cost.sent_bytes / 1e6,
            f", exchanges gradients in {cost.exchange * 1e3:.1f} ms" if cost.exchange else "",
        )
    logger.info(
        "schedule %s, %d micro-batches: predicted %.1f ms a step, bubble %.1f %%",
        plan.schedule.name,
        plan.schedule.microbatches,
        step_seconds * 1e3,
        plan.timeline.bubble * 1e2,
    )


def warn_if_one_process_is_faster(plan: PipelinePlan, step_seconds: float, replicas: int) -> None:
    """Warns if one process with the cores of a rank should need less time for a step.

    Args:
        plan: with measured costs.
        step_seconds: predicted.
        replicas: the number of pipelines.
    """
    microbatches, alone = plan.schedule.microbatches, plan.seconds_alone
    if alone is None:  # with the micro-batches of the stages, which takes longer
        alone = sum(
            microbatches * (cost.forward + cost.input_gradient + cost.weight_gradient) + cost.update
            for cost in plan.costs.stages
        )
    alone *= replicas
    if plan.schedule.ranks * replicas > 1 and alone <= step_seconds:
        logger.warning(
            "one process with the cores of a rank should take %.1f ms a step: micro-batches, "
            "messages and waiting cost this pipeline more than its ranks share, so it saves memory "
            "alone",
            alone * 1e3,
        )
