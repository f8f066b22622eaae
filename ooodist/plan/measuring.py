"""Measures a job in one process, for ``python -m ooodist.plan``."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ooodist.config.job import Config
from ooodist.engines import detect
from ooodist.engines.kinds import find
from ooodist.engines.kinds.local import Local
from ooodist.errors import UserError
from ooodist.planner.pipeline.layer_costs import LayerCost, merged
from ooodist.report.still_running import still_running

if TYPE_CHECKING:
    from ooodist.engines.base import Engine  # imports TensorFlow

logger = logging.getLogger("ooodist")


def in_this_process(config: Config, what: str, way_out: str) -> Config:
    """The job without other workers.

    Raises UserError, with these words, if a launcher has started this process as one of several.
    """
    engine, reason = detect.detect(os.environ)
    if not find(engine).is_alone:
        raise UserError(f"{what} was started for engine {engine} ({reason}); {way_out}")
    return replace(config, engine=Local.name, workers=None)


def measure_layers_of(
    config: Config, split: Sequence[str] | None, numbers: Sequence[int], output: Path
) -> tuple[int, str, dict[int, tuple[LayerCost, ...]]]:
    """Measures layers; returns the exit code, the model's name, and the layers' costs.

    Args:
        config: a job for one process.
        split: names of layers that begin a stage, to merge each stage's layers; None: all separate.
        numbers: numbers of micro-batches; the layers are measured, and returned, for each.
        output: the folder that will be written, which is checked first.
    """
    # Imported late, because they import TensorFlow, which takes seconds.
    from ooodist.job.preparation import check_writable, load_and_build
    from ooodist.job.run import on_all_ranks
    from ooodist.pipeline.layers.measure import measure_layers
    from ooodist.pipeline.stages import calls_of, parts_of_split

    model_names: list[str] = []
    measured: dict[int, tuple[LayerCost, ...]] = {}

    def work(engine: Engine) -> None:
        check_writable(output)
        data, _, model = load_and_build(config, engine)
        batch = next(iter(data.train))
        model_names.append(model.name)
        parts = None if split is None else parts_of_split(calls_of(model), split)
        for number in numbers:
            logger.info("measuring the layers of %s for m=%d", model.name, number)
            with still_running("measuring the layers"):
                layers = measure_layers(model, batch, number)
            measured[number] = layers if parts is None else merged(layers, parts)

    code = on_all_ranks(config, work)
    return code, "".join(model_names), measured
