"""From each form of a checkpoint into a model, whole or in part, on one rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from ooodist.checkpoint import archive, keras_file
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.keras_file import ModelContent
from ooodist.compat.keras_deferred import has_value, release
from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.trainer.resume import Source, restore, restore_own
from tests.checkpoint.examples import assert_same, make_model, state_of, values_of, write_parts

Write = Callable[[Path, keras.Model, list[np.ndarray] | None], Path]


def as_parts(folder: Path, model: keras.Model, best: list[np.ndarray] | None) -> Path:
    write_parts(folder / folders.parts_name(3), model, best_weights=best)
    return folder / folders.parts_name(3)


def as_file(folder: Path, model: keras.Model, best: list[np.ndarray] | None) -> Path:
    archive.write(folder / folders.file_name(3), ModelContent(model, state_of(), best))
    return folder / folders.file_name(3)


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return make_model()


def forgotten(model: keras.Model) -> list[np.ndarray]:
    """Sets all variables to zero; returns what they were."""
    values = values_of(model)
    for variable in keras_file.kept(model):
        variable.assign(np.zeros(variable.shape))
    return values


def assert_restored(model: keras.Model, values: list[np.ndarray]) -> None:
    for variable, value in zip(keras_file.kept(model), values, strict=True):
        if not variable.path.endswith("learning_rate"):
            assert_same(np.asarray(variable.numpy()), value)


@pytest.mark.parametrize("write", [as_parts, as_file])
@pytest.mark.parametrize("has_best", [False, True])
def test_the_whole_model(model: keras.Model, write: Write, has_best: bool, tmp_path: Path) -> None:
    best = [np.asarray(value) + 1 for value in model.get_weights()] if has_best else None
    path = write(tmp_path, model, best)
    values = forgotten(model)
    model.optimizer.learning_rate = 0.5  # the job's
    found = restore(LocalEngine(), Source(path, folders.read_state(path)), model)
    assert_restored(model, values)
    assert float(model.optimizer.learning_rate) == 0.5
    assert (found is not None) == has_best
    for mine, theirs in zip(found or (), best or (), strict=True):
        assert_same(mine, theirs)


def test_what_has_a_value_is_restored(tmp_path: Path) -> None:
    model = make_model()
    best = [np.asarray(value) + 1 for value in model.get_weights()]
    paths = [write(tmp_path, model, best) for write in (as_parts, as_file)]
    values = values_of(model)
    absent = model.get_layer("head")
    for variable in absent.weights:
        release(variable, "rank 1")
    for path in paths:
        for variable in filter(has_value, keras_file.kept(model)):
            variable.assign(np.zeros(variable.shape))
        found = restore_own(LocalEngine(), Source(path, folders.read_state(path)), model)
        assert found is not None
        for index, (variable, value) in enumerate(zip(keras_file.kept(model), values, strict=True)):
            is_absent = any(variable is weight for weight in absent.weights)
            assert has_value(variable) != is_absent
            if index < len(best):
                kept = found[index]
                assert (kept is None) == is_absent
                if kept is not None:
                    assert_same(kept, best[index])
            if not is_absent and not variable.path.endswith("learning_rate"):
                assert_same(np.asarray(variable.numpy()), value)


def test_a_checkpoint_that_is_gone(model: keras.Model, tmp_path: Path) -> None:
    path = as_parts(tmp_path, model, None)
    state = folders.read_state(path)
    folders.delete(path)
    with pytest.raises(
        UserError, match=f"rank 0 does not see the checkpoint {path}; in a pipeline"
    ):
        restore_own(LocalEngine(), Source(path, state), model)
