from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ooodist.config.data import KINDS, FeatureConfig
from ooodist.errors import UserError

X = FeatureConfig("x")
Y = FeatureConfig("y", dtype="int64")


def test_names() -> None:
    names = ["digits", "text", "masked_text", "tsv", "synthetic"]
    names += ["npz", "images", "tfrecord", "tfds", "function"]
    assert list(KINDS) == names
    assert all(kind.name == name for name, kind in KINDS.items())  # type: ignore[attr-defined]


def test_settings_do_not_import_tensorflow() -> None:
    program = "import sys, ooodist.data.kinds; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "digits",
            {"image_size": 0},
            "data.image_size is 0; .*number, at least 1",
        ),
        ("digits", {"channels": 2}, "data.channels is 2; it must be one of 1, 3"),
        ("digits", {"validation_fraction": 1.0}, "data.validation_fraction is 1.0"),
        (
            "digits",
            {"split_seed": 2**32},
            "data.split_seed is 4294967296; .*, 0 to",
        ),
        ("text", {"sequence_length": 0}, "data.sequence_length is 0"),
        ("synthetic", {"input_shape": (0,)}, r"data.input_shape\[0\] is 0"),
        ("synthetic", {"input_shape": (2,)}, "needs data.num_classes or data.target_shape"),
        ("synthetic", {"input_shape": (2,), "num_classes": 1}, "data.num_classes is 1"),
        (
            "synthetic",
            {"input_shape": (2,), "num_classes": 2, "target_shape": (1,)},
            "both num_classes and target_shape",
        ),
        (
            "synthetic",
            {"input_shape": (2,), "dtype": "int8"},
            "dtype is int8 .*one of float32, int32",
        ),
        ("synthetic", {"input_shape": (2,), "dtype": "int32"}, "give data.vocabulary"),
        (
            "synthetic",
            {"input_shape": (2,), "num_classes": 2, "vocabulary": 9},
            "data.vocabulary is only for",
        ),
        (
            "synthetic",
            {"input_shape": (2, 3), "dtype": "int32", "vocabulary": 9},
            r"data.input_shape is \[2, 3\]",
        ),
        (
            "npz",
            {"path": "a", "validation": "b", "validation_fraction": 0.1},
            "data.validation is b: give only one",
        ),
        ("npz", {"path": "a", "task": "guess"}, "data.task is guess; it must be one of class"),
        (
            "npz",
            {"path": "a", "task": "regression", "num_classes": 3},
            "data.num_classes is 3, but regression",
        ),
        ("images", {"path": "a", "channels": 4}, "data.channels is 4"),
        ("images", {"path": "a", "check_files": -1}, "data.check_files is -1"),
        (
            "images",
            {"path": "a", "validation_path": "b", "validation_fraction": 0.0},
            "data.validation_path is b",
        ),
        ("tfrecord", {"pattern": "a", "features": {"a": X}}, "0 with use: y; needed are"),
        ("tfrecord", {"pattern": "a", "features": {"a": Y}}, "has 0 features with use: x"),
        (
            "tfrecord",
            {"pattern": "a", "features": {"a": X, "b": Y}, "compression": "zip"},
            "data.compression is zip .*must be one of none, gzip",
        ),
        (
            "tfrecord",
            {"pattern": "a", "features": {"a": X, "b": Y}, "shuffle_buffer": 0},
            "data.shuffle_buffer is 0",
        ),
        ("tfds", {"dataset": "mnist", "x": "image"}, "data.x is image and data.y is None"),
        ("function", {"function": "module.function"}, "must be package.module:function"),
    ],
)
def test_impossible_settings(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        KINDS[name](**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use": "z"}, "data.features.use is z; it must be one of x, y"),
        ({"use": "x", "encoding": "bmp"}, "data.features.encoding is bmp"),
        ({"use": "x", "dtype": "uint8"}, "data.features.dtype is uint8; .* one of float32, int64"),
        ({"use": "x", "encoding": "raw", "dtype": "text"}, "data.features.dtype is text"),
        ({"use": "x", "encoding": "png", "shape": (8, 8)}, r"data.features.shape is \[8, 8\]"),
    ],
)
def test_impossible_features(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FeatureConfig(**settings)
