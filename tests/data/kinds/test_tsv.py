"""TSV files of texts: what a sample is, and what is wrong with a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.config.data import TsvConfig
from ooodist.data.kinds.tsv import _shortened
from ooodist.data.tokens.wordpiece import SPECIAL
from ooodist.errors import UserError
from tests.data.laws import assert_laws, joined, load_one

pytest.importorskip("tokenizers")
WORDS = [f"w{number}" for number in range(50)]
PAD, UNKNOWN, START, END, _ = range(len(SPECIAL))
FIRST = len(SPECIAL)  # the number of w0


def write(folder: Path, name: str, rows: list[tuple[Any, ...]]) -> str:
    lines = ["id\tone\tother\tlabel", *("\t".join(map(str, row)) for row in rows)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


@pytest.fixture
def config(tmp_path: Path) -> TsvConfig:
    """Whether the second text begins with the first word of the first; quotes mean nothing."""
    chance = np.random.default_rng(1)
    rows = []
    for number in range(60):
        one, other = (chance.choice(WORDS, chance.integers(1, 6)).tolist() for _ in range(2))
        if number % 3 == 0:
            other[0] = one[0]
        rows.append((number, " ".join(one), " ".join(other), "yes" if number % 3 == 0 else "no"))
    (tmp_path / "vocabulary").write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    return TsvConfig(
        write(tmp_path, "train.tsv", rows),
        ("one", "other"),
        str(tmp_path / "vocabulary"),
        length=16,
    )


def numbers(*words: str) -> list[int]:
    return [FIRST + WORDS.index(word) for word in words]


def test_laws(config: TsvConfig) -> None:
    assert_laws(config, batch=4)
    assert_laws(replace(config, texts=("other",)), batch=4)


def test_what_a_sample_is(config: TsvConfig, tmp_path: Path) -> None:
    validation = write(tmp_path, "dev.tsv", [(0, "w3 w4", "w5", "yes"), (1, 'w1 "', "w2 w2", "no")])
    data = load_one(replace(config, validation_path=validation), batch=4)
    assert (data.task, data.num_classes, data.num_tokens) == ("classification", 2, 55)
    assert (data.num_samples, data.num_validation_samples) == (60, 2)
    assert "one and other of " in data.description
    x, y = joined(data.validation)
    assert y.tolist() == [1, 0]  # "no" is before "yes"
    assert {name: (array.shape, array.dtype) for name, array in x.items()} == dict.fromkeys(
        ("token_ids", "segment_ids", "is_token"), ((2, 16), np.dtype(np.int32))
    )
    first = [START, *numbers("w3", "w4"), END, *numbers("w5"), END]
    assert x["token_ids"][0].tolist() == first + [PAD] * 10
    assert x["segment_ids"][0].tolist() == [0] * 4 + [1] * 2 + [0] * 10
    assert x["is_token"][0].tolist() == [1] * 6 + [0] * 10
    second = [START, *numbers("w1"), UNKNOWN, END, *numbers("w2", "w2"), END]
    assert x["token_ids"][1].tolist() == second + [PAD] * 9


def test_a_text_alone_has_one_segment(config: TsvConfig) -> None:
    x, _ = joined(load_one(replace(config, texts=("one",)), batch=4).validation)
    assert not x["segment_ids"].any()
    assert ((x["token_ids"] == END).sum(axis=1) == 1).all()


def test_numbers_are_for_regression(config: TsvConfig, tmp_path: Path) -> None:
    path = write(tmp_path, "numbers.tsv", [(n, "w1", "w2", n / 4) for n in range(20)])
    data = load_one(replace(config, path=path, task="regression"), batch=4)
    assert (data.task, data.num_classes) == ("regression", None)
    _, y = joined(data.validation)
    assert (y.shape, y.dtype) == ((4, 1), np.float32)


def test_a_vocabulary_is_learned(config: TsvConfig, tmp_path: Path) -> None:
    learned = replace(config, vocabulary=str(tmp_path / "new"), vocabulary_size=100)
    data = load_one(learned, batch=4)
    lines = (tmp_path / "new").read_text().splitlines()
    assert len(lines) == data.num_tokens
    assert set(SPECIAL) <= set(lines)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=2), st.integers(8, 40))
def test_the_longer_text_is_shortened(lengths: list[int], length: int) -> None:
    parts = [np.arange(number) for number in lengths]
    kept = [len(part) for part in _shortened(parts, length)]
    room = length - 1 - len(parts)
    assert sum(kept) == min(sum(lengths), room)
    for part, found in zip(parts, _shortened(parts, length), strict=True):
        np.testing.assert_array_equal(found, part[: len(found)])
    if len(kept) == 2 and sum(lengths) > room:  # none is shorter than the other without need
        cut = [end for end, whole in zip(kept, lengths, strict=True) if end < whole]
        assert all(end >= max(kept) - 1 for end in cut)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no file": ({"path": "none.tsv"}, "none.tsv cannot be read"),
    "no such column": ({"label": "labels"}, "has no column labels: its first line names id, one"),
    "three texts": ({"texts": ("one", "other", "id")}, "it must name one or two columns"),
    "words as numbers": ({"task": "regression"}, "line 2 has the label 'yes', and task regression"),
}


@pytest.mark.parametrize(("changes", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(config: TsvConfig, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_one(replace(config, **changes), batch=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one\tother\tlabel\n", "has no rows below"),
        ("one\tother\tlabel\nw1\tw2\n", "line 2 has 2 columns"),
        ("one\tother\tlabel\nw1\tw2\tyes\n", "has one class alone, 'yes'"),
        (b"one\tother\tlabel\n\xff\tw2\tyes\n", "cannot be read as UTF-8"),
        ("", "its first line names none"),
    ],
)
def test_files_that_are_wrong(
    config: TsvConfig, tmp_path: Path, text: str | bytes, message: str
) -> None:
    file = tmp_path / "wrong.tsv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=message):
        load_one(replace(config, path=str(file)), batch=4)


def test_classes_are_those_of_the_training_file(config: TsvConfig, tmp_path: Path) -> None:
    other = write(tmp_path, "dev.tsv", [(0, "w1", "w2", "yes"), (1, "w1", "w2", "perhaps")])
    with pytest.raises(UserError, match=r"line 3 has the class 'perhaps', .* classes are no, yes"):
        load_one(replace(config, validation_path=other), batch=4)
