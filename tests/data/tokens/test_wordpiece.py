"""Vocabularies: learned alike by everybody, kept, read, and refused."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ooodist.data.tokens.wordpiece import SPECIAL, WordPiece
from ooodist.errors import UserError

LINES = [
    f"the {who} {does} the {what}"
    for who in ("cat", "dog", "bird", "horse")
    for does in ("sees", "hears", "follows")
    for what in ("mouse", "house", "moon")
]


def test_it_is_learned_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    learned = WordPiece(file, LINES, 120, lowercase=True)
    tokens = file.read_text().splitlines()
    assert tokens[: len(SPECIAL)] == list(SPECIAL)
    assert len(tokens) == learned.vocabulary.size <= 120
    read = WordPiece(file, [], 120, lowercase=True)
    assert read.vocabulary == learned.vocabulary
    for one, other in zip(learned.numbers(LINES), read.numbers(LINES), strict=True):
        assert one.tolist() == other.tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.txt"]


def test_all_ranks_have_the_same(tmp_path: Path) -> None:
    """Learned by several at once, tokens may be numbered in several ways."""
    file = tmp_path / "vocab.txt"
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: WordPiece(file, LINES * 5, 120, lowercase=True), range(4)))
    assert len({each.vocabulary for each in found}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.txt"]


def test_words_are_cut_into_pieces(tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join([*SPECIAL, "play", "##ing", "Play"]) + "\n")
    small = WordPiece(file, [], 100, lowercase=True)
    assert [each.tolist() for each in small.numbers(["Playing play", "xyz", ""])] == [
        [5, 6, 5],
        [1],
        [],
    ]
    large = WordPiece(file, [], 100, lowercase=False)
    assert [each.tolist() for each in large.numbers(["Playing"])] == [[7, 6]]
    assert small.vocabulary[0] == 8
    assert small.vocabulary[2:] == (0, 2, 3, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the\ncat\n", r"lacks \[PAD\], \[UNK\]"),
        ("\n".join([*SPECIAL, "cat", "cat"]).encode(), "has the token 'cat' twice"),
        (b"\xff\xfe\xff", "cannot be read"),
    ],
)
def test_wrong_vocabularies(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "vocab.txt"
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"data.vocabulary .*{message}"):
        WordPiece(file, LINES, 100, lowercase=True)


def test_no_place_to_keep_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.vocabulary .* cannot be written"):
        WordPiece(tmp_path / "missing" / "vocab.txt", LINES, 100, lowercase=True)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"pip install 'ooodist\[text\]'"):
        WordPiece(Path("vocab.txt"), LINES, 100, lowercase=True)
