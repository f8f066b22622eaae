"""Tells which callbacks may look at the model's weights between two calls.

A plan may carry the last exchanges of a call into the next one, and until then their weights lack
an update. At the end of an epoch and before an evaluation all is complete. But a callback may look
at the weights, or change them, after any batch; where one may, nothing is carried.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras

from ooodist.trainer.writers import SAVERS

READS_NOTHING = "ooodist_reads_no_weights"  # an attribute with which a callback says so
_PER_BATCH = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def may_read_weights(callbacks: Sequence[keras.callbacks.Callback]) -> list[str]:
    """The names of the classes of the callbacks that may look at weights after a batch."""
    return sorted({type(each).__name__ for each in callbacks if _may_read(each)})


def why_complete(readers: Sequence[str]) -> str:
    """Explains in the log why each call ends with complete weights, and the way out."""
    return (
        f"{', '.join(readers)} may look at the weights after each batch, so each call waits for "
        f"all its exchanges; if that is not so, give it the attribute {READS_NOTHING} = True"
        if readers
        else ""
    )


def _may_read(callback: keras.callbacks.Callback) -> bool:
    if getattr(callback, READS_NOTHING, False) or not runs_per_batch(callback):
        return False
    package = type(callback).__module__.partition(".")[0]
    if package == "keras":  # of these, only what saves looks at weights, and what runs a function
        saves = isinstance(callback, SAVERS) and getattr(callback, "save_freq", "epoch") != "epoch"
        return saves or isinstance(callback, keras.callbacks.LambdaCallback)
    return package != "ooodist"


def runs_per_batch(callback: keras.callbacks.Callback) -> bool:
    """Whether the callback does anything before or after a batch."""
    for name in _PER_BATCH:
        method = getattr(callback, name)
        if getattr(method, "__func__", method) is not getattr(keras.callbacks.Callback, name):
            return True
    return False
