from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ooodist.config.data import TextConfig
from ooodist.errors import UserError
from tests.data.laws import assert_laws, batches, joined, load_one


def test_laws() -> None:
    assert_laws(TextConfig(sequence_length=2000), batch=8)


def test_every_byte_of_a_file_is_used_once(tmp_path: Path) -> None:
    text = bytes(range(256)) * 4 + b"tail"  # 1028 bytes: 102 windows of 10
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    data = load_one(TextConfig(str(path), sequence_length=10), batch=92)
    assert (data.num_samples, data.num_validation_samples) == (92, 10)
    (x, y), *_ = batches(data.train, 1)
    validation_x, validation_y = joined(batches(data.validation))
    assert x.dtype == y.dtype == np.int32
    windows = [text[start : start + 11] for start in range(0, 1020, 10)]
    trained = [bytes([*first, second[-1]]) for first, second in zip(x, y, strict=True)]
    held_out = [
        bytes([*first, second[-1]])
        for first, second in zip(validation_x, validation_y, strict=True)
    ]
    assert sorted(trained) == sorted(windows[:92])
    assert held_out == windows[92:]
    assert np.array_equal(x[:, 1:], y[:, :-1])


def test_the_text_that_ships_with_python() -> None:
    data = load_one(TextConfig())
    (x, _), *_ = batches(data.train, 1)
    assert (data.task, data.num_classes) == ("language", 256)
    assert data.num_samples > 2000
    assert x.shape == (4, 128)
    windows, _ = joined(batches(data.train, 20))
    assert b" the " in windows.astype(np.uint8).tobytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read .*No such file"),
        (b"", "has 0 bytes, a sample of data.sequence_length 128 needs 129"),
        (b"a" * 128, "has 128 bytes"),
    ],
)
def test_errors(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_one(TextConfig(str(path)))


def test_a_folder_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Is a directory"):
        load_one(TextConfig(str(tmp_path)))
