"""Tells whether gradient tapes are recording."""

from __future__ import annotations

import contextlib

import tensorflow as tf


def others_record(tape: tf.GradientTape) -> bool:
    """Returns whether a tape other than this one is recording.

    ``record.could_possibly_record`` (of tensorflow.python.eager) is called while this tape is
    paused, if it is recording (``GradientTape._recording``). No public name tells.
    """
    from tensorflow.python.eager import record

    with tape.stop_recording() if tape._recording else contextlib.nullcontext():
        return bool(record.could_possibly_record())
