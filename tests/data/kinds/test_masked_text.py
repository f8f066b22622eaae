"""Samples for pre-training: what is masked, and that the stream is everybody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooodist.config.data import MaskedTextConfig
from ooodist.data.tokens.wordpiece import SPECIAL
from ooodist.errors import UserError
from ooodist.models.metrics import NO_LABEL
from tests.data.laws import assert_laws, batches, joined, load_one

WORDS = [f"w{number}" for number in range(200)]
PAD, _, START, END, MASK = range(len(SPECIAL))


@pytest.fixture
def config(tmp_path: Path) -> MaskedTextConfig:
    """Twenty documents of sentences of three to nine words, of which each is a token."""
    chance = np.random.default_rng(1)
    documents = [
        "\n".join(" ".join(chance.choice(WORDS, chance.integers(3, 10))) for _ in range(30))
        for _ in range(20)
    ]
    (tmp_path / "a").mkdir()
    (tmp_path / "a/first.txt").write_text("\n\n".join(documents[:12]))
    (tmp_path / "second.txt").write_text("\n \n\n".join(documents[12:]))
    vocabulary = tmp_path / "vocab"
    vocabulary.write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    return MaskedTextConfig(str(vocabulary), str(tmp_path), length=40)


def epoch(config: MaskedTextConfig, number: int = 0) -> tuple[dict[str, Any], Any, Any]:
    """x, labels and whether B is random, of all samples of an epoch, in the order of the stream."""
    data = load_one(config, batch=1)
    steps = data.num_samples
    x, (labels, is_random) = joined(batches(data.train, (number + 1) * steps)[number * steps :])
    return x, labels, is_random


def test_laws(config: MaskedTextConfig) -> None:
    assert_laws(config, batch=4)


def test_what_a_sample_is(config: MaskedTextConfig) -> None:
    data = load_one(config, batch=8)
    assert (data.task, data.num_classes) == ("pretraining", len(SPECIAL) + len(WORDS))
    x, labels, is_random = epoch(config)
    assert {name: array.shape[1:] for name, array in x.items()} == {
        "token_ids": (40,), "segment_ids": (40,), "is_token": (40,), "chosen": (6,),
    }  # fmt: skip
    assert 0.35 < is_random.mean() < 0.65
    for tokens, segments, is_token, chosen, own in zip(*x.values(), labels, strict=True):
        length = is_token.sum()
        assert is_token.tolist() == [1] * length + [0] * (40 - length)
        assert (tokens[length:] == PAD).all()
        ends = np.flatnonzero(tokens == END)
        assert tokens[0] == START
        # A and B are there, and end with their [SEP].
        assert ends[-1] == length - 1
        first = np.flatnonzero(np.diff(segments))[0]
        assert tokens[first] == END
        assert segments.tolist() == [0] * (first + 1) + [1] * (length - first - 1) + [0] * (
            40 - length
        )
        there = own != NO_LABEL
        number = there.sum()
        assert number == min(6, max(1, round(0.15 * (length - 3))))
        assert there.tolist() == [True] * number + [False] * (6 - number)
        assert (chosen[number:] == 0).all()
        assert len(set(chosen[:number])) == number
        assert not {0, first, length - 1} & set(chosen[:number])
        assert (chosen[:number] < length).all()
        assert (own[:number] >= len(SPECIAL)).all()


def test_eight_tenths_are_masked_and_one_tenth_replaced(config: MaskedTextConfig) -> None:
    x, labels, _ = epoch(config)
    put = np.take_along_axis(x["token_ids"], x["chosen"], axis=1)
    there = labels != NO_LABEL
    put, labels = put[there], labels[there]
    assert len(put) > 600
    assert abs((put == MASK).mean() - 0.8) < 0.05
    assert abs((put == labels).mean() - 0.1) < 0.04


def test_another_part_is_masked_in_each_epoch(config: MaskedTextConfig) -> None:
    def whole(epoch_number: int) -> tuple[list[bytes], list[bytes]]:
        """Samples with the chosen tokens put back, and as they are."""
        x, labels, _ = epoch(config, epoch_number)
        tokens = x["token_ids"].copy()
        for row, chosen, own in zip(tokens, x["chosen"], labels, strict=True):
            there = own != NO_LABEL
            row[chosen[there]] = own[there]
        return [row.tobytes() for row in tokens], [row.tobytes() for row in x["token_ids"]]

    (first, first_masked), (second, second_masked) = whole(0), whole(1)
    assert sorted(first) == sorted(second)
    assert len(set(first_masked) & set(second_masked)) < 0.05 * len(first)


def test_validation_is_masked_alike_each_time(config: MaskedTextConfig) -> None:
    data = load_one(config, batch=8)
    assert data.validation is not None
    one, other = (joined(batches(data.validation)) for _ in range(2))
    for name, array in one[0].items():
        np.testing.assert_array_equal(array, other[0][name])
    assert (one[1][0] != NO_LABEL).any(axis=1).all()
    assert (
        len(one[1][1])
        == data.num_validation_samples
        == round(0.1 * (data.num_samples + data.num_validation_samples))
    )


def test_the_text_that_ships_with_python(tmp_path: Path) -> None:
    vocabulary = str(tmp_path / "vocab.txt")
    data = load_one(MaskedTextConfig(vocabulary, length=32, vocabulary_size=500), batch=4)
    x, (labels, _) = batches(data.train, 1)[0]
    assert data.num_classes == 500
    assert data.num_samples > 1000
    assert x["token_ids"].shape == (4, 32)
    assert labels.shape == (4, 5)


@pytest.mark.parametrize(("words", "is_said"), [(4, False), (40, True)])
def test_lines_that_fill_a_sample_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, words: int, is_said: bool
) -> None:
    """Then there is nothing of the same document that B could be."""
    lines = [" ".join(["word"] * words) for _ in range(10)]
    (tmp_path / "text.txt").write_text("\n\n".join(["\n".join(lines)] * 20))
    load_one(MaskedTextConfig(str(tmp_path / "vocab"), str(tmp_path), length=32))
    said = [text for text in caplog.messages if "is from another document" in text]
    assert len(said) == is_said
    if is_said:
        assert "in 100% of the samples" in said[0]
        assert "put one sentence a line, or raise data.length (32 tokens" in said[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "has no file \\*.txt"),
        (b"", "has 0 documents with text, and pairs need two"),
        (b"one\ndocument\n", "has 1 documents with text"),
        (b"one\n\n\x01\x02\n", "has 1 documents with text"),  # of the other no token is left
        (b"\x01\n\n\x02\n", "has 0 documents with text"),
        (b"\xff\xff", "cannot be read as UTF-8 text"),
    ],
)
def test_errors(tmp_path: Path, text: bytes | None, message: str) -> None:
    if text is not None:
        (tmp_path / "text.txt").write_bytes(text)
    with pytest.raises(UserError, match=message):
        load_one(MaskedTextConfig(str(tmp_path / "vocab"), str(tmp_path)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 7}, "data.length is 7; it must be a whole number, at least 8"),
        ({"length": 16, "predictions": 14}, "data.predictions is 14; it must be 1 to 13"),
        ({"vocabulary_size": 9}, "data.vocabulary_size is 9"),
        ({"validation_fraction": 1.0}, "data.validation_fraction is 1.0"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MaskedTextConfig("vocab", **settings)
