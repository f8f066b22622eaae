"""Whether gradient tapes record."""

from __future__ import annotations

import contextlib

import tensorflow as tf


def others_record(tape: tf.GradientTape) -> bool:
    """Whether a tape other than this one records at present.

    ``record.could_possibly_record`` (of tensorflow.python.eager) is asked
    while this one pauses, if it records (``GradientTape._recording``). No public name tells.
    """
    from tensorflow.python.eager import record

    with tape.stop_recording() if tape._recording else contextlib.nullcontext():
        return bool(record.could_possibly_record())
