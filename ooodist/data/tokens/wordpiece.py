"""WordPiece tokens of texts (Devlin et al. 2018, section 3), by the library ``tokenizers``."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooodist.errors import UserError
from ooodist.util.digest import hex_digest
from ooodist.util.replacing import replacing

logger = logging.getLogger("ooodist")

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LINES_AT_A_TIME = 10_000


class Vocabulary(NamedTuple):
    """The numbers of special tokens, how many tokens there are, and a digest of all."""

    size: int
    digest: str
    pad: int
    start: int  # [CLS]
    end: int  # [SEP]
    mask: int


class WordPiece:
    """Turns lines into the numbers of their tokens.

    Args:
        file: a vocabulary in BERT's format, a token per line. If there is none, one is learned
            from the lines, and written there. Learning twice may number tokens in two ways, so of
            several ranks one writes it, and all read that.
        lines: what to learn from.
        size: how many tokens to learn, at most.
        lowercase: whether capital letters and accents do not count.

    Attributes:
        vocabulary: what it has.

    Raises:
        UserError: the library is missing, or the file is no vocabulary or cannot be written.
    """

    def __init__(self, file: Path, lines: list[str], size: int, *, lowercase: bool) -> None:
        kind = _library().BertWordPieceTokenizer
        if not file.exists():
            learning = kind(lowercase=lowercase)
            learning.train_from_iterator(
                lines, vocab_size=size, show_progress=False, special_tokens=list(SPECIAL)
            )
            _write(file, learning.get_vocab())
        numbers = _read(file)
        self._tokenizer = kind(numbers, lowercase=lowercase)
        pad, _, start, end, mask = (numbers[token] for token in SPECIAL)
        digest = hex_digest("\n".join(numbers), 8)
        self.vocabulary = Vocabulary(len(numbers), digest, pad, start, end, mask)

    def numbers(self, lines: list[str]) -> Iterable[np.ndarray]:
        """Yields the token numbers of each line, int32, without special tokens."""
        for begin in range(0, len(lines), LINES_AT_A_TIME):
            part = lines[begin : begin + LINES_AT_A_TIME]
            for encoded in self._tokenizer.encode_batch(part, add_special_tokens=False):
                yield np.array(encoded.ids, np.int32)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UserError(
            "data masked_text needs the package tokenizers, which is not installed: "
            "pip install 'ooodist[text]'"
        ) from error
    return tokenizers


def _read(file: Path) -> dict[str, int]:
    try:
        tokens = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"data.vocabulary {file} cannot be read ({error}): give a text file with a token per "
            "line, or the name of one that does not exist yet, to learn it from the text"
        ) from error
    numbers = {token: number for number, token in enumerate(tokens)}
    if missing := [token for token in SPECIAL if token not in numbers]:
        raise UserError(
            f"data.vocabulary {file} lacks {', '.join(missing)}: it must have a token per line, "
            f"among them {', '.join(SPECIAL)}"
        )
    if len(numbers) < len(tokens):
        twice = next(token for number, token in enumerate(tokens) if numbers[token] != number)
        raise UserError(
            f"data.vocabulary {file} has the token {twice!r} twice: each line must be another one"
        )
    return numbers


def _write(file: Path, numbers: dict[str, int]) -> None:
    """Writes a vocabulary unless another rank was faster."""
    tokens = sorted(numbers, key=numbers.__getitem__)
    try:
        with replacing(file, only_if_missing=True) as temporary:
            temporary.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"data.vocabulary {file} cannot be written ({error.strerror}): give a place on a disk "
            "that can be written to and has hard links"
        ) from error
    logger.info("vocabulary of %d tokens, learned from the text: %s", len(tokens), file)
