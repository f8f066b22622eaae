"""Samples for BERT's pre-training: two segments of text with some tokens masked.

Source: Devlin et al. 2018, "BERT", section 3.1 and appendix A.2.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from ooodist.config.data import MaskedTextConfig
from ooodist.data.kinds.text import topics
from ooodist.data.sources import IndexedSource, Meaning, Pair
from ooodist.data.tokens.sentence_pairs import Document, sentence_pairs
from ooodist.data.tokens.wordpiece import Vocabulary, WordPiece
from ooodist.errors import UserError
from ooodist.models.base import PRETRAINING
from ooodist.models.metrics import NO_LABEL

logger = logging.getLogger("ooodist")

CHOSEN = 0.15  # of all tokens
MASKED, RANDOM = 0.8, 0.1  # of the chosen ones; the others stay as they are
MOST_TOKENS = 2**31 - 1
MOST_ELSEWHERE = 0.75  # of all samples; half are wanted
SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]


def source(config: MaskedTextConfig) -> IndexedSource:
    """Makes a source of pairs of segments; the end of the text is for validation.

    x is a dictionary of int32: ``token_ids``, ``segment_ids`` (0 for A, 1 for B) and ``is_token``
    (0 for padding) have shape (length,), ``chosen`` (predictions,) has the places of the tokens to
    predict. y is these tokens, int32 (predictions,), NO_LABEL where fewer are chosen, and whether
    B is from another document, int32 ().
    """
    documents = [lines for lines in _documents(config) if lines]
    _check_several(len(documents), config)  # before a vocabulary is made of them
    lines = [line for document in documents for line in document]
    pieces = WordPiece(
        Path(config.vocabulary), lines, config.vocabulary_size, lowercase=config.lowercase
    )
    tokens, found = _joined(pieces.numbers(lines), documents)
    _check_several(len(found), config)
    if len(tokens) > MOST_TOKENS:
        raise UserError(
            f"data.path {config.path} has {len(tokens):,} tokens, and a job takes {MOST_TOKENS:,} "
            "at most, as they are kept in memory: give a part of the files"
        )
    pairs = sentence_pairs(found, config.length - SPECIAL_TOKENS, config.seed)
    elsewhere = pairs[:, -1].mean()
    if elsewhere > MOST_ELSEWHERE:
        logger.warning(
            "data.path %s: in %.0f%% of the samples the second segment is from another document, "
            "instead of 50%%, so next_accuracy will say little: put one sentence a line, or raise "
            "data.length (%d tokens, which one line alone often fills)",
            config.path,
            100 * elsewhere,
            config.length,
        )
    num_train = len(pairs) - round(config.validation_fraction * len(pairs))
    samples = _Samples(tokens, pairs, pieces.vocabulary, config.length, config.predictions)
    meaning = Meaning(
        kind=config.name,
        description=(
            f"two segments of {config.length} tokens together from {len(found):,} documents, "
            f"{pieces.vocabulary.size:,} tokens (vocabulary {pieces.vocabulary.digest})"
        ),
        task=PRETRAINING,
        num_classes=pieces.vocabulary.size,
    )
    return IndexedSource(
        meaning,
        train=np.arange(num_train),
        validation=np.arange(num_train, len(pairs)) if config.validation_fraction else None,
        read=samples.read,
        read_validation=lambda index: samples.mask(samples.read(index), tf.cast(index, tf.int32)),
        one_by_one=True,
        augment=samples.mask,
    )


class _Samples:
    """The samples by number.

    Args:
        tokens: of all documents, int32.
        pairs: see :func:`sentence_pairs`.
        length: of a sample, special tokens included.
        predictions: how many tokens are predicted at most; None: CHOSEN of the length.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        pairs: np.ndarray,
        vocabulary: Vocabulary,
        length: int,
        predictions: int | None,
    ) -> None:
        self._tokens = tf.constant(tokens)
        self._pairs = tf.constant(pairs, tf.int32)
        self._vocabulary = vocabulary
        self._length = length
        self._predictions = predictions or max(1, round(CHOSEN * length))

    def read(self, index: tf.Tensor) -> Pair:
        """A sample with no token masked yet: x, and whether B is random."""
        a, a_length, b, b_length, is_random = tf.unstack(self._pairs[index])
        place = tf.range(self._length)
        b_place = a_length + 2  # behind [CLS] A [SEP]
        end = b_place + b_length  # the place of the last [SEP]
        is_a = (place >= 1) & (place <= a_length)
        is_b = (place >= b_place) & (place < end)
        at = tf.where(is_b, b + place - b_place, tf.where(is_a, a + place - 1, 0))
        words = self._vocabulary
        special = tf.where(
            place == 0,
            words.start,
            tf.where((place == a_length + 1) | (place == end), words.end, words.pad),
        )
        x = {
            "token_ids": tf.where(is_a | is_b, tf.gather(self._tokens, at), special),
            "segment_ids": tf.cast((place >= b_place) & (place <= end), tf.int32),
            "is_token": tf.cast(place <= end, tf.int32),
        }
        return x, is_random

    def mask(self, sample: Pair, noise: tf.Tensor) -> Pair:
        """Masks some tokens of a sample, as an int32 ``noise`` decides."""
        x, is_random = sample
        tokens, words = x["token_ids"], self._vocabulary
        keys, actions = tf.unstack(tf.random.stateless_uniform([2, self._length], [noise, 0]))
        is_word = (tokens != words.start) & (tokens != words.end) & (x["is_token"] == 1)
        count = tf.reduce_sum(tf.cast(is_word, tf.float32))
        number = tf.clip_by_value(tf.cast(tf.round(CHOSEN * count), tf.int32), 1, self._predictions)
        # Words in a random order, then the rest.
        order = tf.argsort(tf.where(is_word, keys, 2.0), stable=True)[: self._predictions]
        is_chosen = tf.range(self._predictions) < number
        action = tf.gather(actions, order)
        others = tf.random.stateless_uniform(
            [self._predictions], [noise, 1], 0, words.size, tf.int32
        )
        kept = tf.gather(tokens, order)
        put = tf.where(
            action < MASKED, words.mask, tf.where(action < MASKED + RANDOM, others, kept)
        )
        put = tf.where(is_chosen, put, kept)
        x = x | {
            "token_ids": tf.tensor_scatter_nd_update(tokens, order[:, tf.newaxis], put),
            "chosen": tf.where(is_chosen, order, 0),
        }
        return x, (tf.where(is_chosen, kept, NO_LABEL), is_random)


def _check_several(documents: int, config: MaskedTextConfig) -> None:
    if documents < 2:
        raise UserError(
            f"data.path {config.path} has {documents} documents with text, and pairs need two: "
            "give several files, or put empty lines between documents"
        )


def _documents(config: MaskedTextConfig) -> Iterator[list[str]]:
    """Yields the lines with text of each document."""
    if config.path == "topics":  # each is a document, whatever lines are empty
        yield from (_with_text(text.splitlines()) for text in topics())
        return
    for text in _read(Path(config.path)):
        for has_text, lines in itertools.groupby(text.splitlines(), _has_text):
            if has_text:
                yield _with_text(lines)


def _has_text(line: str) -> bool:
    return bool(line.strip())


def _with_text(lines: Iterable[str]) -> list[str]:
    return [line.strip() for line in lines if _has_text(line)]


def _read(path: Path) -> Iterator[str]:
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"data.path {path} has no file *.txt, nor has a folder in it: give one")
    for file in files:
        try:
            yield file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"data.path: {file} cannot be read as UTF-8 text ({error}): give a text file, a "
                "folder of *.txt, or topics for the text that ships with Python"
            ) from error


def _joined(
    lines: Iterable[np.ndarray], documents: list[list[str]]
) -> tuple[np.ndarray, list[Document]]:
    """The tokens of all lines, joined, and where documents and their sentences are."""
    lines = iter(lines)
    tokens = [np.empty(0, np.int32)]
    found = []
    end = 0
    for document in documents:
        begin, ends = end, []
        for numbers in itertools.islice(lines, len(document)):
            if len(numbers):  # control characters alone make none
                tokens.append(numbers)
                end += len(numbers)
                ends.append(end)
        if ends:
            found.append(Document(begin, tuple(ends)))
    return np.concatenate(tokens), found
