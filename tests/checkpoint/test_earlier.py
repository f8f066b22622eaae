"""Checkpoints that an ooodist of 2026-11-30 has written are read: a Keras file, and parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint import keras_file
from ooodist.checkpoint.archive import KerasFile
from ooodist.engines.base import Engine
from ooodist.engines.local import LocalEngine
from ooodist.trainer.resume import Source, restore, restore_own
from tests.checkpoint.examples import assert_same

Load = Callable[[Engine, Source, keras.Model], list[Any] | None]

FOLDER = Path(__file__).parent / "earlier"
FORMS = [FOLDER / folders.file_name(3), FOLDER / folders.parts_name(3)]
SHAPES = [(3, 2), (2,), (), (), (3, 2), (2,)]
LEARNING_RATE = 3  # its index; it was 0.5


def saved(index: int) -> np.ndarray:
    """What a variable was: 0, 1, … and its index added."""
    dtype = {2: np.int64, LEARNING_RATE: np.float32}.get(index, ml_dtypes.bfloat16)
    if index == LEARNING_RATE:
        return np.array(0.5, dtype)
    counted = np.arange(int(np.prod(SHAPES[index]))).reshape(SHAPES[index])
    return np.asarray((counted + index).astype(dtype))


@pytest.mark.parametrize("path", FORMS, ids=["file", "parts"])
def test_all_that_it_has_is_read(path: Path) -> None:
    state = folders.read_state(path)
    assert (state.epoch, state.step, state.size) == (3, 33, 2)
    assert state.history == [{"epoch": 1, "loss": 0.5}]
    with folders.open_checkpoint(path) as content:
        for index in range(len(SHAPES)):
            assert_same(content.read(index), saved(index))
        best = content.best()
        assert best is not None
        for index, weight in enumerate(best):
            assert_same(weight, (saved(index) + 1).astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("load", [restore, restore_own])
@pytest.mark.parametrize("path", FORMS, ids=["file", "parts"])
def test_a_job_goes_on_from_it(path: Path, load: Load) -> None:
    layers = [keras.Input((3,)), keras.layers.Dense(2, name="dense", dtype="bfloat16")]
    model = keras.Sequential(layers, name="earlier")
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9, name="sgd"), "mse")
    model.optimizer.build(model.trainable_variables)
    best = load(LocalEngine(), Source(path, folders.read_state(path)), model)
    for index, variable in enumerate(keras_file.kept(model)):
        assert_same(np.asarray(variable.numpy()), saved(index))
    assert best is not None
    assert len(best) == 2


def test_what_its_ranks_have_kept_is_read() -> None:
    with KerasFile(FORMS[0]) as content:
        (found,) = content.by_rank().items()
    assert found[0] == "residual/dense/kernel"
    assert_same(found[1], np.ones((2, 3, 2), np.float32))
