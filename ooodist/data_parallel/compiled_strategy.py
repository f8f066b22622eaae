"""Data parallelism whose steps XLA compiles where that is faster.

Whether XLA makes a step faster depends on the model and the processor, so both ways take turns in
training, and the faster one stays::

    one worker that compile() lets compile  | compiled ...     | trial | the faster ...
    all others                              | not compiled ... | trial | the faster ...

A compiled step has no order, and no exchange overlaps its backward pass
(:mod:`ooodist.step.compiled`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ooodist.compat.tensorflow_runtime import is_deterministic
from ooodist.data_parallel.data_parallel_strategy import DataParallel
from ooodist.data_parallel.xla import COMPILED, COMPILING, compiling, setting_of
from ooodist.step.execution import Batch, Run
from ooodist.trainer.live import LiveTrial
from ooodist.trainer.trial import LAUNCHES, ROUNDS, Candidate

logger = logging.getLogger("ooodist")


class CompiledDataParallel(DataParallel):
    """The strategy of :func:`ooodist.distribute` if a step may be compiled."""

    warns_of_jit_compile = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._setting = self.training.jit_compile if self.training.may_compile else False
        self._settled: str | None = None  # the name of the way that is the faster

    def _runner(self) -> Run:
        setting = setting_of(self.model, self.backward, self._setting)
        # Ranks compare them before the first step: all compile, or none does.
        self.arguments = f"{self.training.arguments} {setting} {is_deterministic()}"
        if not setting:
            return super()._runner()
        steps = self.steps_per_execution
        uncompiled = Candidate("not compiled", super()._runner(), steps)
        run = self._in_executions_of(self.backward, steps, compiled=True)
        if setting is True:
            return compiling(self.model, run, None if self._setting is True else uncompiled.run)
        compiled = Candidate(COMPILED, compiling(self.model, run, uncompiled.run), steps)
        if self._settled is not None:  # the model was compiled again since
            return (compiled if self._settled == COMPILED else uncompiled).run
        usual, other = uncompiled, compiled
        if self.engine.size == 1 and self.model.jit_compile:  # as with Keras
            usual, other = other, usual
        if is_deterministic():
            logger.info(
                "jit_compile auto: steps stay %s, as ops are to be deterministic and a trial "
                "depends on times",
                usual.name,
            )
            return usual.run
        return _Compiling(self, usual, other)

    def settle(self, candidate: Candidate) -> None:
        """Trains in this way from now on."""
        self._settled = candidate.name


class _Compiling(LiveTrial[Any]):
    """Trains in the usual way, tries the other once that pays, and goes on in the faster one."""

    def __init__(self, strategy: CompiledDataParallel, usual: Candidate, other: Candidate) -> None:
        super().__init__(strategy.engine, strategy, strategy.training.planning.share, "XLA", usual)
        strategy.is_trying = False
        self._strategy = strategy
        self._other = other

    def _cost(self, first: float, batch: float) -> float:
        tracing = first if self._usual.name == COMPILED else (1 + COMPILING) * first
        return tracing + ROUNDS * LAUNCHES * self._other.steps * batch

    def _is_too_short(self, cost: float, training: float) -> None:
        pass  # it goes on as usual

    def _try_on(self, batches: Sequence[Batch]) -> None:
        if self._other.name == COMPILED and not self._may_compile():
            self._settle(self._usual)
        else:
            self._begin_trial([self._usual, self._other], self._usual.run)

    def _settle(self, fastest: Candidate) -> None:
        self._strategy.settle(fastest)
        self._strategy.is_trying = False
        self._next = fastest.run
