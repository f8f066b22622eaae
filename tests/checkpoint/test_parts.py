"""Checkpoints in parts: what is in them, and what becomes of damaged ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from ooodist.checkpoint import folder as folders
from ooodist.checkpoint import keras_file
from ooodist.checkpoint.parts import (
    MANIFEST_NAME,
    Manifest,
    Parts,
    part_name,
    read_manifest,
    write_manifest,
)
from ooodist.errors import UserError
from ooodist.util.digest import hex_digest
from tests.checkpoint.examples import assert_same, make_model, state_of, values_of, write_parts


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return make_model()


@pytest.fixture(scope="module")
def written(model: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / folders.parts_name(3)
    write_parts(folder, model)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(written, tmp_path / written.name))


def test_each_variable_comes_back(model: keras.Model, written: Path) -> None:
    with Parts(written) as parts:
        parts.verify()
        for index, value in enumerate(values_of(model)):
            assert_same(parts.read(index), value)
        assert parts.num_best == 0


def test_the_state_comes_back_exactly(model: keras.Model, written: Path) -> None:
    expected = replace(state_of(), variables=keras_file.variables_of(model))
    assert read_manifest(written).state == expected
    assert folders.read_state(written) == expected
    assert folders.latest(written.parent) == (written, expected)


def test_values_can_be_found_by_people(model: keras.Model, written: Path) -> None:
    with np.load(written / part_name(0), allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["embedding/embeddings"], model.weights[0].numpy())
    manifest = read_manifest(written)
    members = [entry.member.removesuffix(".npy") for entry in manifest.variables]
    assert members == [variable.path for variable in manifest.state.variables]


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest as somebody would who does not know of its digest."""
    whole = json.loads((folder / MANIFEST_NAME).read_text())
    change(whole["content"])
    (folder / MANIFEST_NAME).write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / MANIFEST_NAME).unlink(), r"there is no manifest\.json in it"),
        (lambda folder: os.truncate(folder / MANIFEST_NAME, 0), r"manifest\.json: Expecting value"),
        (lambda folder: os.truncate(folder / MANIFEST_NAME, 500), r"manifest\.json: "),
        (lambda folder: (folder / MANIFEST_NAME).write_text("[]"), r"manifest\.json: list"),
        (
            lambda folder: (folder / MANIFEST_NAME).write_bytes(b"\xff\xfe"),
            r"manifest\.json: .*utf",
        ),
        (
            lambda folder: change_manifest(
                folder, lambda content: content["state"].update(epoch=9)
            ),
            r"manifest\.json was changed",
        ),
        (lambda folder: (folder / part_name(0)).unlink(), r"its part part-0\.npz is missing"),
        (
            lambda folder: os.truncate(folder / part_name(0), 1000),
            r"its part part-0\.npz has 1000 bytes instead of \d+",
        ),
        (lambda folder: flip(folder / part_name(0), 5000), r"part-0\.npz is damaged \(.*\.npy"),
        (lambda folder: flip(folder / part_name(0), -10), r"part-0\.npz is damaged"),
    ],
)
def test_damage_is_named(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    pattern = rf"checkpoint {folder} is damaged \(.*{message}.*name an earlier one"
    with pytest.raises(UserError, match=pattern):
        folders.read_state(folder)


def test_a_damaged_newest_is_skipped_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newest = folder.with_name(folders.parts_name(4))
    shutil.copytree(folder, newest)
    (newest / part_name(0)).unlink()
    assert folders.latest(folder.parent)[0] == folder
    assert f"checkpoint {newest} is damaged" in caplog.text
    (folder / MANIFEST_NAME).unlink()
    with pytest.raises(UserError, match="there is no checkpoint that is whole in"):
        folders.latest(folder.parent)


def rewritten(folder: Path, change: Callable[[Manifest], Manifest]) -> None:
    """Writes another manifest, with its digest, as another ooodist might."""
    manifest = change(read_manifest(folder))
    write_manifest(folder, manifest)


def with_first(manifest: Manifest, **changes: Any) -> Manifest:
    first, *others = manifest.variables
    return replace(manifest, variables=(replace(first, **changes), *others))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda manifest: replace(manifest, format=2), "format is 2; it must be 1"),
        (
            lambda manifest: replace(manifest, variables=manifest.variables[1:]),
            r"it has \d+ variables, and its state \d+",
        ),
        (lambda manifest: replace(manifest, sizes={"../x": 1}), r"a part is called '\.\./x'"),
        (
            lambda manifest: with_first(manifest, file="/etc/passwd"),
            r"embedding/embeddings\.npy is in '/etc/passwd', which is no part",
        ),
        (
            lambda manifest: with_first(manifest, dtype="object_"),
            r"the dtype of .*embeddings\.npy is 'object_'",
        ),
        (
            lambda manifest: with_first(manifest, shape=(-1, 8)),
            r"the shape of .*embeddings\.npy is \(-1, 8\)",
        ),
        (
            lambda manifest: replace(manifest, ranks={"residual/a": manifest.variables[:2]}),
            r"the shapes of residual/a, a row for each rank, are \[\(11, 8\), ",
        ),
    ],
)
def test_what_no_ooodist_of_this_format_writes(
    folder: Path, change: Callable[[Manifest], Manifest], message: str
) -> None:
    rewritten(folder, change)
    pattern = rf"checkpoint {folder} was written by another ooodist: {message}"
    with pytest.raises(UserError, match=pattern):
        Parts(folder)


def test_a_key_of_a_later_ooodist(folder: Path) -> None:
    change_manifest(folder, lambda content: content.update(invention=1))
    whole = json.loads((folder / MANIFEST_NAME).read_text())
    text = json.dumps(whole["content"], sort_keys=True)
    whole["digest"] = hex_digest(text)
    (folder / MANIFEST_NAME).write_text(json.dumps(whole))
    with pytest.raises(UserError, match="written by another ooodist: there is no key invention"):
        read_manifest(folder)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"there is no checkpoint {tmp_path}/x; check the path"):
        Parts(tmp_path / "x")


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_best_weights_travel_with_it(policy: str, tmp_path: Path) -> None:
    model = make_model(policy=policy)
    best = [np.asarray(value) for value in model.get_weights()]
    for weight in model.trainable_weights:
        weight.assign(weight + 1)
    write_parts(tmp_path / "a", model, best_weights=best)
    with Parts(tmp_path / "a") as parts:
        assert parts.num_best == len(best)
        for index, (value, now) in enumerate(zip(best, model.weights, strict=True)):
            assert_same(parts.read_best(index), value)
            assert_same(parts.read(index), np.asarray(now.numpy()))
