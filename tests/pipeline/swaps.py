"""What training_worker.py does for the case ``swaps``: schedules take turns in real training.

A model with dropout trains with the schedule auto until another was tried, and then as many steps
with one schedule; not one bit is to differ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ooodist
from ooodist import engines
from ooodist.pipeline.live_schedule import MEASURED_STEPS, TIMED_STEPS, WARM_UP_STEPS
from ooodist.settings.sections import PlanningConfig
from ooodist.trainer import live

STEPS = 50  # of a fit
MOST_FITS = 200
BEFORE_SEARCH = WARM_UP_STEPS + TIMED_STEPS + MEASURED_STEPS

Make = Callable[[], tuple[keras.Model, tf.data.Dataset]]


class Messages(logging.Handler):
    """What the log says, each with the number of steps that were trained before."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []
        self._model = model

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((int(self._model.optimizer.iterations.numpy()), record.getMessage()))


def trains_with_swaps_as_without(make: Make, options: dict[str, Any]) -> None:
    """The same numbers, in weights, optimizer and history.

    Args:
        make: a compiled model, always the same, and its data.
        options: of ooodist.pipelined.
    """
    live.MOST_SEARCHES = 1  # one is enough here
    logger = logging.getLogger("ooodist")
    model, data = make()
    ooodist.pipelined(
        model, **options, schedule="auto", planning=PlanningConfig(share=1.0), timeout=20
    )
    messages, level = Messages(model), logger.level
    logger.addHandler(messages)
    logger.setLevel(logging.INFO)
    losses: list[float] = []
    while not losses or model.ooodist.strategy.is_trying:
        assert len(losses) < MOST_FITS, messages.lines
        losses += model.fit(data, steps_per_epoch=STEPS, verbose=0).history["loss"]
    logger.removeHandler(messages)
    logger.setLevel(level)
    begun = [at for at, line in messages.lines if "searching a schedule beside" in line]
    tried = [line for _, line in messages.lines if line.startswith("tried in training")]
    assert begun == [BEFORE_SEARCH], messages.lines
    assert len(tried) == 1, messages.lines
    assert f"{model.ooodist.strategy.inner.fastest.schedule.name} stays" in tried[0]
    engines.current().check_equal("what was tried", tried[0].split(" ")[3])
    model.ooodist.strategy.close()
    expected, data = make()
    ooodist.pipelined(expected, **options, schedule="gpipe", timeout=20)
    others: list[float] = []
    for _ in losses:
        others += expected.fit(data, steps_per_epoch=STEPS, verbose=0).history["loss"]
    expected.ooodist.strategy.close()
    assert losses == others
    with ooodist.whole(model), ooodist.whole(expected):
        for found, other in (
            (model.variables, expected.variables),
            (model.optimizer.variables, expected.optimizer.variables),
        ):
            for one, same in zip(found, other, strict=True):
                assert np.array_equal(one.numpy(), same.numpy()), one.path
