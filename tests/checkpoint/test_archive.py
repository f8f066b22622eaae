"""Keras files, read one variable at a time without Keras."""

from __future__ import annotations

import json
import os
import random
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

from ooodist.checkpoint import archive
from ooodist.checkpoint.archive import KerasFile
from ooodist.checkpoint.content import EXTRAS
from ooodist.checkpoint.keras_file import ModelContent
from ooodist.errors import UserError
from tests.checkpoint.examples import assert_same, make_model, state_of, values_of


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest) -> keras.Model:
    return make_model(policy=request.param)


@pytest.fixture
def file(model: keras.Model, tmp_path: Path) -> Path:
    file = tmp_path / "a.keras"
    archive.write(
        file, ModelContent(model, state_of(), [weight.numpy() for weight in model.weights])
    )
    return file


def test_each_variable_is_read_alone_in_any_order(model: keras.Model, file: Path) -> None:
    values = values_of(model)
    order = list(range(len(values)))
    random.Random(1).shuffle(order)
    with KerasFile(file) as read:
        assert read.num_best == len(model.weights)
        for index in order:
            assert_same(read.read(index), values[index])
            if index < read.num_best:
                assert_same(read.read_best(index), values[index])


def test_its_layout(model: keras.Model, file: Path) -> None:
    with KerasFile(file) as read:
        groups, extras = read.groups, read.extras
        assert json.loads(read.config)["config"]["name"] == "example"
        assert read.assets == []
        known = [place for variable in read.state.variables for place in variable.places]
        assert len(known) == len(set(known))
        for index, variable in enumerate(read.state.variables):
            for place in variable.places:
                assert_same(read.value(EXTRAS, place), read.read(index))
    assert extras == []
    assert groups["layers/embedding/vars"] == "embedding"
    assert groups["optimizer/vars"].startswith("adam")


def test_the_state_says_where_each_variable_is(model: keras.Model, file: Path) -> None:
    first, *_, last = archive.read_state(file).variables
    assert first.path == "embedding/embeddings"
    assert first.places == ("layers/embedding/vars/0",)
    assert first.shape == (11, 8)
    assert last.places == (f"optimizer/vars/{len(model.optimizer.variables) - 1}",)


def rewrite(file: Path, change: dict[str, bytes | None], compression: int = 0) -> None:
    """Writes the archive anew, with other members or, for None, without them."""
    with zipfile.ZipFile(file) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(file, "w", compression) as whole:
        for name, content in {**members, **change}.items():
            if content is not None:
                whole.writestr(name, content)


def test_a_file_of_an_earlier_ooodist(file: Path) -> None:
    with zipfile.ZipFile(file) as whole:
        state = json.loads(whole.read(archive.STATE_MEMBER))
    for variable in state["variables"]:
        del variable["places"]
    rewrite(file, {archive.STATE_MEMBER: json.dumps(state).encode()})
    archive.read_state(file)  # it is a checkpoint
    message = r"does not say where embedding/embeddings is: an earlier"
    with KerasFile(file) as read, pytest.raises(UserError, match=message):
        read.read(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({archive.STATE_MEMBER: None}, r"is not a checkpoint of ooodist \(it has no ooodist\.json"),
        ({archive.STATE_MEMBER: b"{"}, r"is damaged \(.*; name an earlier one"),
        ({archive.STATE_MEMBER: b"{}"}, r"was written by another ooodist: "),
        ({archive.WEIGHTS_MEMBER: None}, r"is damaged \(.*model\.weights\.h5"),
        ({archive.WEIGHTS_MEMBER: b"x" * 1000}, r"is damaged \("),
        ({archive.BEST_WEIGHTS_MEMBER: b"x" * 1000}, r"is damaged \("),
    ],
)
def test_what_is_no_whole_checkpoint(
    file: Path, change: dict[str, bytes | None], message: str
) -> None:
    rewrite(file, change)
    with pytest.raises(UserError, match=rf"{file} {message}"):
        KerasFile(file)


def test_a_compressed_one_is_refused(file: Path) -> None:
    rewrite(file, {}, zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match=r"model\.weights\.h5 is compressed, which Keras does not"):
        KerasFile(file)


def test_files_are_closed_again(file: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with KerasFile(file) as read:
            read.read(0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_weights_are_written_where_they_belong(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.int16).reshape(2, 3)
    with archive.weights_file(tmp_path / "w.h5", {"layers/a/vars": "a", "vars": ""}) as weights:
        archive.write_places(weights, ["layers/a/vars/0", "layers/a/vars/1"], values)
        assert weights["layers/a/vars"].attrs["name"] == "a"
        assert dict(weights["vars"].attrs) == {}
        for place in ("layers/a/vars/0", "layers/a/vars/1"):
            assert_same(weights[place][()], values)
