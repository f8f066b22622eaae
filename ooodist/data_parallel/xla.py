"""Whether XLA compiles the steps of a model, and what happens if it cannot."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import keras
import tensorflow as tf

from ooodist.errors import UserError, brief
from ooodist.settings.training import JitCompile
from ooodist.step.backward import OrderedBackward
from ooodist.step.compiled import is_whole
from ooodist.step.execution import Batch, Run
from ooodist.trainer.live import Logs
from ooodist.trainer.watchdog import expect_longer

logger = logging.getLogger("ooodist")

COMPILED = "compiled"  # the name of this way to train
COMPILING = 3.0  # seconds for each that tracing takes: 1 to 2.5 on CPUs
_CANNOT_COMPILE = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)


def setting_of(model: keras.Model, backward: OrderedBackward, given: JitCompile) -> JitCompile:
    """Whether steps are compiled: True, False, or ``auto`` if that is to be tried.

    Args:
        model: a compiled model.
        backward: exchanges its gradients.
        given: what ``ooodist.distribute`` was told; None: ``compile`` decides.

    Raises:
        UserError: True was given, and the model cannot be compiled with XLA.
    """
    setting = _of_compile(model) if given is None else given
    reason = _why_not(model, backward) if setting else ""
    if not reason:
        return setting
    if given is True:
        raise UserError(
            f"jit_compile of ooodist.distribute is True, but {reason}; leave it out, or set it to "
            "False"
        )
    logger.warning("steps are not compiled with XLA, as %s", reason)
    return False


def _of_compile(model: keras.Model) -> JitCompile:
    """What ``compile`` says: True only if the user said so.

    Keras makes False of its default, ``auto``, where there are only CPUs, and True elsewhere.
    """
    if not model.jit_compile:
        return False
    only_cpus = all(each.device_type == "CPU" for each in tf.config.list_physical_devices())
    return True if only_cpus else "auto"


def _why_not(model: keras.Model, backward: OrderedBackward) -> str:
    """Why steps cannot be compiled; empty if they can, as far as is known."""
    if model.run_eagerly:
        return "the model runs eagerly"
    has_own = type(model).train_step is not keras.Model.train_step
    if has_own and not is_whole(backward):
        return (
            f"{type(model).__name__} has a train_step of its own, and its gradients are exchanged "
            "in the middle of it"
        )
    return ""


def compiling(model: keras.Model, run: Run, instead: Run | None) -> Run:
    """What trains with compiled steps, or otherwise if the first cannot be compiled.

    Args:
        model: the model, for messages.
        run: trains with compiled steps.
        instead: trains otherwise, and a warning is logged; None: then UserError is raised.
    """
    chosen: Run | None = None

    def first(batches: Sequence[Batch]) -> Logs:
        nonlocal chosen
        if chosen is not None:
            return chosen(batches)
        expect_longer("XLA began to compile a step")
        try:
            logs = run(batches)
        except _CANNOT_COMPILE as error:
            what = f"XLA cannot compile a step of model {model.name} ({brief(error)})"
            if instead is None:
                raise UserError(
                    f"{what}, but jit_compile of ooodist.distribute is True; leave it out, or set "
                    "it to False"
                ) from error
            logger.warning("%s: it is not compiled", what)
            chosen = instead
            return instead(batches)
        chosen = run
        return logs

    return first
