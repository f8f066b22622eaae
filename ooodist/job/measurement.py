"""Measures a job that is to be planned and not trained, on all ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from ooodist.config import job as job_file
from ooodist.config.job import Config
from ooodist.data_parallel.planning import limits_of
from ooodist.engines.base import Engine
from ooodist.job.all_ranks import on_all_ranks
from ooodist.job.building import load_and_build
from ooodist.job.preparation import check_writable
from ooodist.pipeline.layers.measure import measure_layers
from ooodist.pipeline.stages import calls_of, parts_of_split
from ooodist.planner.data_parallel.search import Limits
from ooodist.planner.pipeline.layer_costs import LayerCost, merged
from ooodist.profiler.storage import Profile, profile_of
from ooodist.report.still_running import still_running
from ooodist.settings.sections import ExchangeConfig, OrderConfig
from ooodist.step.optimizer import needs_all_gradients

logger = logging.getLogger("ooodist")


@dataclass(frozen=True)
class Measured:
    """The measurements that planning a job needs.

    Attributes:
        title: the model in a few words.
        profile: costs of its step and of the network.
        limits: limits of the search for a plan.
    """

    title: str
    profile: Profile
    limits: Limits


@dataclass
class MeasuredLayers:
    """The measurements that planning a pipeline needs.

    Attributes:
        model: the name of the model; empty if building it has failed.
        has_barrier: whether its optimizer makes the ranks of a pipeline wait for each other.
        layers: the layers' costs, by the number of micro-batches.
    """

    model: str = ""
    has_barrier: bool = False
    layers: dict[int, tuple[LayerCost, ...]] = field(default_factory=dict)


def run(config: Config, output: Path) -> tuple[int, Measured | None]:
    """Measures the job and disconnects from the other ranks.

    Args:
        config: the job; its order and its exchanges are ignored, its ``planning`` and
            ``steps_per_execution`` are used.
        output: where rank 0 is going to write.

    Returns:
        the exit code, and what was measured: None on ranks other than 0, and on failure. The
        process ends if other ranks may not arrive.
    """
    config = replace(config, order=OrderConfig(name="planned"), exchange=ExchangeConfig())
    found: list[Measured] = []

    def work(engine: Engine) -> None:
        measured = _measure(config, engine, output)
        if engine.rank == 0:
            found.append(measured)

    code = on_all_ranks(config, work)
    return code, found[0] if found and not code else None


def measure_layers_of(
    config: Config, split: Sequence[str] | None, numbers: Sequence[int], output: Path
) -> tuple[int, MeasuredLayers]:
    """Measures layers; returns the exit code and what was measured.

    Args:
        config: a job for one process.
        split: names of layers that begin a stage, to merge each stage's layers; None: all separate.
        numbers: numbers of micro-batches; the layers are measured, and returned, for each.
        output: the folder that will be written, which is checked first.
    """
    measured = MeasuredLayers()

    def work(engine: Engine) -> None:
        check_writable(output)
        data, _, model = load_and_build(config, engine)
        batch = next(iter(data.train))
        measured.model = model.name
        measured.has_barrier = needs_all_gradients(model.optimizer, skips=config.on_nan == "skip")
        parts = None if split is None else parts_of_split(calls_of(model), split)
        for number in numbers:
            logger.info("measuring the layers of %s for m=%d", model.name, number)
            with still_running("measuring the layers"):
                layers = measure_layers(model, batch, number)
            measured.layers[number] = layers if parts is None else merged(layers, parts)

    return on_all_ranks(config, work), measured


def _measure(config: Config, engine: Engine, output: Path) -> Measured:
    engine.check_equal("the job (--config, --set)", job_file.digest(config))
    with engine.agreed():
        if engine.rank == 0:
            check_writable(output)
    data, steps_per_epoch, model = load_and_build(config, engine)
    settings = config.planning
    batch = next(iter(data.train))
    with still_running("measuring") if engine.rank == 0 else nullcontext():
        profile = profile_of(
            model, batch, engine, settings, accumulate=config.accumulate, low_rank=True
        )
    updates = steps_per_epoch // config.accumulate
    limits = limits_of(engine, settings, config.steps_per_execution, updates * config.epochs)
    # No call reaches over the end of an epoch.
    limits = replace(limits, max_steps_per_execution=min(limits.max_steps_per_execution, updates))
    return Measured(f"{model.name}, batch {config.batch}", profile, limits)
