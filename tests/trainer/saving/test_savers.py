"""One saver for both forms of a checkpoint, on one rank."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import ooodist
from ooodist import engines
from ooodist.checkpoint import folder as folders
from ooodist.errors import UserError
from ooodist.step.rank_state import RankState
from ooodist.trainer.saving.savers import Saver, Wanted
from tests.checkpoint.examples import assert_same, make_model, state_of, values_of

pytestmark = pytest.mark.usefixtures("local_engine")


@pytest.fixture
def model() -> keras.Model:
    return ooodist.distribute(make_model())


def saver(folder: Path, *, in_parts: bool, keep: int = 2) -> Saver:
    writers = (lambda: {}) if in_parts else None
    return Saver(folder, keep, engines.current(), None, RankState(), writers)


def save(saver: Saver, model: keras.Model, epoch: int, *, is_due: bool, is_best: bool) -> Path:
    best = [np.asarray(weight.numpy()) for weight in model.weights]
    wanted = Wanted(state_of(epoch), best, is_due=is_due, is_best=is_best)
    path = saver.begin(model, wanted, copies=False)
    saver.complete(saver.write)
    return path


NAMES = {
    False: ["best.keras", "checkpoint-epoch-000003.keras", "checkpoint-epoch-000004.keras"],
    True: ["best-epoch-000004", "checkpoint-epoch-000003", "checkpoint-epoch-000004"],
}


@pytest.mark.parametrize("in_parts", [False, True])
def test_the_newest_and_the_best_are_there(
    in_parts: bool, model: keras.Model, tmp_path: Path
) -> None:
    saves = saver(tmp_path, in_parts=in_parts)
    save(saves, model, 1, is_due=False, is_best=True)
    save(saves, model, 2, is_due=True, is_best=False)
    save(saves, model, 3, is_due=True, is_best=True)
    newest = save(saves, model, 4, is_due=True, is_best=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES[in_parts]
    assert newest.name == NAMES[in_parts][-1]
    best = folders.best_in(tmp_path)
    assert best is not None
    for path in (newest, best):
        assert folders.read_state(path).epoch == 4


@pytest.mark.parametrize("in_parts", [False, True])
def test_what_is_written_later_is_what_was_there_when_it_began(
    in_parts: bool, model: keras.Model, tmp_path: Path
) -> None:
    expected = [value.copy() for value in values_of(model)]
    saves = saver(tmp_path, in_parts=in_parts)
    wanted = Wanted(state_of(5), None, is_due=True, is_best=False)
    path = saves.begin(model, wanted, copies=True)
    for weight in model.trainable_weights:
        weight.assign(weight + 1)
    saves.write()
    saves.complete(lambda: None)
    with folders.open_checkpoint(path) as saved:
        for index, value in enumerate(expected):
            assert_same(saved.read(index), value)


@pytest.mark.parametrize("in_parts", [False, True])
def test_what_fails_while_it_is_written_fails_all_and_leaves_nothing(
    in_parts: bool, model: keras.Model, tmp_path: Path
) -> None:
    weight = model.trainable_weights[0]
    weight.assign(np.full(weight.shape, np.nan))
    with pytest.raises(UserError, match=f"weight {weight.path} is not finite"):
        save(saver(tmp_path, in_parts=in_parts), model, 1, is_due=True, is_best=True)
    assert list(tmp_path.iterdir()) == []
