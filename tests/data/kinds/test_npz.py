from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooodist.config.data import NpzConfig
from ooodist.errors import UserError
from tests.data.laws import assert_laws, batches, epoch_targets, joined, load_one

IMAGES = np.arange(40 * 4, dtype=np.uint8).reshape(40, 2, 2, 1)
LABELS = np.arange(40) % 4


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return save(tmp_path / "data.npz", x=IMAGES, y=LABELS)


def test_laws(path: str) -> None:
    assert_laws(NpzConfig(path))


def test_images_are_scaled_and_labels_counted(path: str) -> None:
    data = load_one(NpzConfig(path, validation_fraction=0), batch=40)
    (x, y), *_ = batches(data.train, 1)
    assert x.dtype == np.float32
    assert y.dtype == np.int32
    assert (data.task, data.num_classes, data.validation) == ("classification", 4, None)
    order = np.argsort(x[:, 0, 0, 0])
    assert np.allclose(x[order] * 255, IMAGES)
    assert np.array_equal(y[order], LABELS)


def test_the_default_split_is_stratified(path: str) -> None:
    data = load_one(NpzConfig(path))
    assert np.bincount(joined(batches(data.validation))[1]).tolist() == [2, 2, 2, 2]


def test_scale(path: str) -> None:
    data = load_one(NpzConfig(path, scale=2.0, validation_fraction=0), batch=40)
    assert np.array_equal(np.unique(batches(data.train, 1)[0][0]), np.arange(0, 320, 2))


def test_a_validation_file_and_other_names(tmp_path: Path) -> None:
    train = save(tmp_path / "a.npz", inputs=np.zeros((8, 3)), targets=np.arange(8.0))
    held_out = save(tmp_path / "b.npz", inputs=np.ones((5, 3)), targets=np.arange(5.0))
    config = NpzConfig(train, "inputs", "targets", validation=held_out)
    data = load_one(config)
    x, y = joined(batches(data.validation))
    assert data.task == "regression"
    assert data.num_classes is None
    assert x.dtype == y.dtype == np.float32
    assert y.tolist() == [0, 1, 2, 3, 4]
    assert x.min() == 1
    assert sorted(epoch_targets(data, 4)) == list(range(8))
    assert_laws(config, batch=2)


def test_tokens_are_a_language(tmp_path: Path) -> None:
    tokens = np.arange(60).reshape(12, 5)
    data = load_one(NpzConfig(save(tmp_path / "a.npz", x=tokens, y=tokens + 1)))
    assert (data.task, data.num_classes) == ("language", 61)
    assert data.train.element_spec[0].dtype == "int32"


def test_integer_targets_of_a_regression(tmp_path: Path) -> None:
    config = NpzConfig(save(tmp_path / "a.npz", x=IMAGES, y=LABELS), task="regression")
    data = load_one(config)
    assert data.num_classes is None
    assert data.train.element_spec[1].dtype == "float32"


X, Y = np.zeros((9, 2)), np.zeros(9, int)


@pytest.mark.parametrize(
    ("arrays", "settings", "message"),
    [
        ({"x": X, "y": Y[:8]}, {}, "has 9 samples in x and 8 in y"),
        ({"x": X[:0], "y": Y[:0]}, {}, "is empty: its arrays have 0 samples"),
        ({"a": X, "y": Y}, {}, "has no array x, it has a, y: set data.x"),
        ({"x": X, "y": 3}, {}, "array y of .* is a single number"),
        ({"x": X, "y": Y - 1}, {}, "label -1 of .*'s sample 0 is out of range: allowed are 0 and"),
        (
            {"x": X, "y": np.arange(9)},
            {"num_classes": 5},
            "label 8 .*sample 8 .*allowed are 0 to 4",
        ),
        ({"x": X.astype(str), "y": Y}, {}, "array x of .* has dtype string"),
        ({"x": X * 1j, "y": Y}, {}, "array x of .* has dtype complex128"),
        ({"x": X.astype("datetime64[s]"), "y": Y}, {}, "array x of .* has dtype string"),
        ({"x": X.astype(object), "y": Y}, {}, "without Python objects"),
        ({"x": np.full((9, 2), 2**40), "y": Y}, {}, "integers outside of int32"),
        (
            {"x": np.where(np.arange(18).reshape(9, 2) == 11, np.nan, X), "y": Y},
            {},
            r"array x of .*a\.npz has nan at \[5, 1\]; 1 of its 18 values are not finite",
        ),
        ({"x": X, "y": np.full(9, -np.inf)}, {}, r"array y of .* has -inf at \[0\]; 9 of"),
        ({"x": X + 1e39, "y": Y}, {}, r"array x of .* has 1e\+39 at \[0, 0\]; .* in float32"),
        ({"x": X, "y": np.zeros((9, 2), int)}, {}, "fit no task for certain: give data.task"),
        ({"x": X, "y": X}, {"task": "language"}, "data.task is language, but y"),
        ({"x": X, "y": X}, {"num_classes": 4}, "data.num_classes is 4, but y"),
        ({"x": X, "y": Y}, {"validation_fraction": 0.01}, "has 0 validation samples"),
    ],
)
def test_wrong_arrays(
    tmp_path: Path, arrays: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, allow_pickle=True, **arrays)
    with pytest.raises(UserError, match=message):
        load_one(NpzConfig(str(path), **settings))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no.npz does not exist"):
        load_one(NpzConfig(str(tmp_path / "no.npz")))


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.98])
def test_a_truncated_file(path: str, kept: float) -> None:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    with pytest.raises(UserError, match=r"cannot be read as a NumPy .npz file"):
        load_one(NpzConfig(path))


def test_a_damaged_file(path: str) -> None:
    content = bytearray(Path(path).read_bytes())
    content[200] ^= 0xFF
    Path(path).write_bytes(content)
    with pytest.raises(UserError, match=r"cannot be read as a NumPy .npz file"):
        load_one(NpzConfig(path))


def test_a_single_array(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, X)
    with pytest.raises(UserError, match="holds a single array"):
        load_one(NpzConfig(str(path)))


def test_validation_unlike_training(tmp_path: Path, path: str) -> None:
    other = save(tmp_path / "b.npz", x=IMAGES.astype(np.float32), y=LABELS)
    with pytest.raises(UserError, match=r"and dtype uint8, .* and float32: they must be alike"):
        load_one(NpzConfig(path, validation=other))
    more = save(tmp_path / "c.npz", x=IMAGES, y=LABELS + 1)
    with pytest.raises(UserError, match=r"label 4 of .*c.npz"):
        load_one(NpzConfig(path, validation=more))
