"""Ranks come to a method of the model together, and with one model, or end with one message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.keras_model import layers_of
from ooodist.engines.base import Engine
from ooodist.engines.timeout import ending_after
from ooodist.errors import UserError
from ooodist.trainer import arrays
from ooodist.trainer.strategy import Strategy

_NAME_BYTES = 64


def meet(engine: Engine, method: str) -> None:
    """Waits until all ranks have called a method; ends the process if others do not come.

    Args:
        engine: its ``timeout`` is for how long others are waited for.
        method: what is called, as the user writes it.

    Raises:
        UserError: other ranks do something else meanwhile.
    """
    if engine.size == 1:
        return
    own = np.frombuffer(method.encode().ljust(_NAME_BYTES), np.uint8)
    late = (
        f"rank {engine.rank} has waited in {method} for {engine.timeout:g} s, as not all ranks "
        f"have called it: call {method} on all {engine.size} ranks, whatever each of them does "
        "with the result; if others need longer to come, raise timeout of ooodist.init"
    )
    with ending_after(engine.timeout, late, shows_stacks=False):
        try:
            rows = engine.gather(own)
        except Exception as error:  # each library has its own
            error.add_note(
                f"ooodist: rank {engine.rank} calls {method}, which all {engine.size} ranks have "
                "to call together, but another rank is gone: it says why, or has ended without "
                "calling it"
            )
            raise
    others = [rank for rank, row in enumerate(rows) if (row != own).any()]
    if others:
        text = rows[others[0]].tobytes().strip()
        is_method = re.fullmatch(rb"[a-z_.]+", text) is not None
        raise UserError(
            f"rank {engine.rank} calls {method}, but rank {others[0]} "
            f"{f'calls {text.decode()}' if is_method else 'does something else'} at the same time: "
            "call the same methods on all ranks, in the same order"
        )


def share_one_model(strategy: Strategy, given: Mapping[str, Any]) -> None:
    """Gives all ranks rank 0's weights before ``evaluate(**given)``, where they differ.

    As ``fit`` does, as ranks may have been built with different seeds, or rank 0 alone has loaded
    weights: a metric is of one model.
    """
    model, engine = strategy.model, strategy.engine
    if strategy.has_whole_model and type(model).train_step is keras.Model.train_step:
        is_new = not all(layer.built for layer in layers_of(model))
        is_new_anywhere = engine.all_reduce(np.array([is_new], np.int32), "max")[0]
        x = given.get("x")
        is_kept = isinstance(x, tf.data.Dataset | keras.utils.PyDataset) or arrays.is_arrays(x)
        if is_new_anywhere and engine.all_reduce(np.array([is_kept], np.int32), "min")[0]:
            with engine.agreed():
                strategy.build(arrays.without_optionals(arrays.first_batch(given)))
    strategy.follow_rank_0()
