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
from functools import partial
from typing import Any, Literal

import keras
import tensorflow as tf

from ooodist.compat.tensorflow_runtime import is_deterministic
from ooodist.data_parallel.strategy import DataParallel
from ooodist.errors import UserError, brief
from ooodist.step.compiled import is_whole
from ooodist.step.launch import Batch, Run
from ooodist.trainer.live import LiveTrial, Logs
from ooodist.trainer.trial import LAUNCHES, ROUNDS, Candidate, Trial
from ooodist.trainer.watchdog import expect_longer

logger = logging.getLogger("ooodist")

JitCompile = Literal["auto"] | bool | None
COMPILED = "compiled"
COMPILING = 3.0  # seconds for each that tracing takes: 1 to 2.5 on CPUs
MOST_SHAPES = 2  # of batches, where compiling is tried: each is compiled for itself
_CANNOT_COMPILE = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)


class CompiledDataParallel(DataParallel):
    """The strategy of :func:`ooodist.distribute` if a step may be compiled.

    Args:
        arguments: those of :class:`DataParallel`; the order is TensorFlow's own.
        setting: True: steps are compiled; ``auto``: the faster way stays; None: as ``compile``
            says.
    """

    warns_of_jit_compile = False

    def __init__(self, *arguments: Any, setting: JitCompile) -> None:
        super().__init__(*arguments)
        self._setting = setting
        self._settled: str | None = None  # the name of the way that is the faster
        self.cannot_compile = False  # XLA has failed
        self.arguments += f" {setting}"

    def runner(self) -> Run:
        setting = self._setting
        if setting is None:
            setting = _of_compile(self.model)
        reason = self._why_not() if setting else ""
        if reason and self._setting is True:
            raise UserError(
                f"jit_compile of ooodist.distribute is True, but {reason}; leave it out, or set it "
                "to False"
            )
        if reason:
            logger.warning("steps are not compiled with XLA, as %s", reason)
        if reason or not setting:
            return super().runner()
        steps = self.steps_per_execution
        uncompiled = Candidate("not compiled", super().runner(), steps)
        instead = None if self._setting is True else uncompiled.run
        compiled = Candidate(COMPILED, self._compiled(instead), steps)
        if setting is True:
            return compiled.run
        if self._settled is not None:  # the model was compiled again since
            return (compiled if self._settled == COMPILED else uncompiled).run
        usual, other = uncompiled, compiled
        if self.engine.size == 1 and self.model.jit_compile:  # as with Keras
            usual, other = other, usual
        if is_deterministic():
            return usual.run  # when the other takes over depends on times
        return _Compiling(self, usual, other)

    def _why_not(self) -> str:
        """Returns why steps cannot be compiled with XLA; empty if they can."""
        model = self.model
        if model.run_eagerly:
            return "the model runs eagerly"
        has_own = type(model).train_step is not keras.Model.train_step
        if has_own and not is_whole(self.backward):
            return (
                f"{type(model).__name__} has a train_step of its own, and its gradients are "
                "exchanged in the middle of it"
            )
        return ""

    def _compiled(self, instead: Run | None) -> Run:
        """Returns what trains with compiled steps.

        Args:
            instead: trains if the first cannot be compiled; None: then UserError is raised.
        """
        run = self._in_launches_of(self.backward, self.steps_per_execution, compiled=True)
        chosen: Run | None = None

        def first(batches: Sequence[Batch]) -> Logs:
            nonlocal chosen
            if chosen is not None:
                return chosen(batches)
            expect_longer("XLA began to compile a step")
            try:
                logs = run(batches)
            except _CANNOT_COMPILE as error:
                what = f"XLA cannot compile a step of model {self.model.name} ({brief(error)})"
                if instead is None:
                    raise UserError(
                        f"{what}, but jit_compile of ooodist.distribute is True; leave it out, or "
                        "set it to False"
                    ) from error
                logger.warning("%s: it is not compiled", what)
                chosen, self.cannot_compile = instead, True
                return instead(batches)
            chosen = run
            return logs

        return first

    def settle(self, candidate: Candidate) -> None:
        """Trains in this way from now on."""
        self._settled = candidate.name


class _Compiling(LiveTrial[Any]):
    """Trains in the usual way, tries the other once that pays, and goes on in the faster one."""

    def __init__(self, strategy: CompiledDataParallel, usual: Candidate, other: Candidate) -> None:
        super().__init__(strategy.engine, strategy, strategy.planning.share, "XLA", usual)
        strategy.is_trying = False
        self._strategy = strategy
        self._other = other
        self._is_settled = False
        self._shapes: set[Any] | None = set()  # None: not needed any more

    def __call__(self, batches: Sequence[Batch]) -> Logs:
        if self._shapes is not None:
            leaves = tf.nest.flatten(batches)
            self._shapes.add(tuple(getattr(leaf, "shape", None) for leaf in leaves))
        logs = super().__call__(batches)
        if self._strategy.cannot_compile and not self._is_settled:
            self._settle(self._other if self._usual.name == COMPILED else self._usual)
        return logs

    def _cost(self, first: float, batch: float) -> float:
        tracing = first if self._usual.name == COMPILED else (1 + COMPILING) * first
        return tracing + ROUNDS * LAUNCHES * self._other.steps * batch

    def _is_too_short(self, cost: float, training: float) -> None:
        pass  # it goes on as usual

    def _try_on(self, batches: Sequence[Batch]) -> None:
        (shapes,) = self._most(len(self._shapes or ()))
        if self._other.name == COMPILED and shapes > MOST_SHAPES:
            self._settle(self._usual)
        else:
            self._next = partial(self._try, Trial(self._engine, [self._usual, self._other]))

    def _try(self, trial: Trial, batches: Sequence[Batch]) -> Logs:
        if len(batches) != trial.steps:  # the last of an epoch
            return self._usual.run(batches)
        logs = trial(batches)
        if trial.fastest is not None:
            logger.info(
                "XLA rounds otherwise: a compiled step has other last bits than one that is not; "
                "ooodist.distribute(model, jit_compile=True or False) chooses without a trial"
            )
            self._settle(trial.fastest)
        return logs

    def _settle(self, candidate: Candidate) -> None:
        self._is_settled, self._shapes = True, None
        self._strategy.settle(candidate)
        self._strategy.is_trying = False
        self._next = candidate.run


def _of_compile(model: keras.Model) -> JitCompile:
    """Returns what ``compile`` says: True only if the user said so.

    Keras makes False of its default, ``auto``, where there are only CPUs, and True elsewhere.
    """
    if not model.jit_compile:
        return False
    only_cpus = all(each.device_type == "CPU" for each in tf.config.list_physical_devices())
    return True if only_cpus else "auto"
