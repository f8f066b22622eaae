"""A rank without memory says so, with errors as NumPy and TensorFlow raise them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.compat.keras_deferred import made_without_values
from ooodist.errors import UserError
from ooodist.pipeline.layers.out_of_memory import (
    explained,
    explaining_lack_of_memory,
    is_out_of_memory,
    process_bytes,
)
from ooodist.util.process_memory import Limit

TOO_MUCH = 1 << 50  # bytes: no process has so many addresses
LARGE = 64 << 20


def in_numpy() -> Any:
    return np.ones(TOO_MUCH, np.uint8)


def in_tensorflow() -> Any:
    return tf.zeros([TOO_MUCH], tf.uint8)


@pytest.mark.parametrize("allocate", [in_numpy, in_tensorflow])
def test_memory_that_ends_is_explained(
    monkeypatch: pytest.MonkeyPatch, allocate: Callable[[], Any]
) -> None:
    limit = Limit("RLIMIT_DATA", 123)
    monkeypatch.setattr("ooodist.pipeline.layers.out_of_memory.lowest_limit", lambda: limit)
    with (
        pytest.raises(UserError, match=r"^no memory is left while rank 7 waters plants: ") as found,
        explaining_lack_of_memory("rank 7 waters plants", lambda: "99 bytes for stage 2"),
    ):
        allocate()
    message = str(found.value)
    assert "planned are 99 bytes for stage 2; " in message
    assert "the limit of the process is 123 bytes (RLIMIT_DATA); " in message
    assert "parallel.memory_bytes" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "error", [ValueError("no such layer"), UserError("OOM when allocating was the text"), KeyError]
)
def test_other_errors_stay_what_they_are(error: Any) -> None:
    kind = type(error) if isinstance(error, Exception) else error
    with pytest.raises(kind) as found, explaining_lack_of_memory("rank 0 trains"):
        raise error
    assert not is_out_of_memory(found.value)


def test_without_a_plan_and_a_limit_neither_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ooodist.pipeline.layers.out_of_memory.lowest_limit", lambda: None)
    message = str(explained(MemoryError("std::bad_alloc"), "layers are measured"))
    assert message.startswith("no memory is left while layers are measured: MemoryError: std::bad")
    assert "planned" not in message
    assert "limit" not in message


def test_a_process_without_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    # Here the process takes what others left free in it, so the kernel's figure is not compared.
    monkeypatch.setattr("ooodist.pipeline.layers.out_of_memory.resident_bytes", lambda: 3 * LARGE)
    held = [keras.Variable(np.ones(LARGE // 4, np.float32)), tf.Variable(tf.ones([LARGE // 4]))]
    layer = made_without_values(lambda: keras.layers.Dense(1 << 20))
    made_without_values(lambda: layer.build((None, 1 << 10)))  # 4 GB, which nobody has
    assert process_bytes([*held, *layer.variables]) == LARGE
    monkeypatch.setattr("ooodist.pipeline.layers.out_of_memory.resident_bytes", lambda: None)
    assert process_bytes(held) is None
