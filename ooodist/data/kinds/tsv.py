"""Samples from TSV files of texts or pairs of texts with a label, as those of GLUE, for a BERT."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ooodist.config.data import DEFAULT_VALIDATION_FRACTION, TsvConfig
from ooodist.data.sources import IndexedSource, Meaning, Pair
from ooodist.data.split import split_indices
from ooodist.data.tokens.wordpiece import Vocabulary, WordPiece
from ooodist.errors import UserError


class _Rows(NamedTuple):
    """What a file has: the texts of each row, its label, and its line."""

    texts: list[tuple[str, ...]]
    labels: list[str]
    lines: list[int]


class _Encoded(NamedTuple):
    """Samples as tokens: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

    Attributes:
        tokens: int32 (samples, length), padded.
        a_ends, ends: the number of tokens up to the first and the last [SEP], int32 (samples,).
        targets: int32 classes, or float32 numbers, (samples,).
    """

    tokens: np.ndarray
    a_ends: np.ndarray
    ends: np.ndarray
    targets: np.ndarray


def source(config: TsvConfig) -> IndexedSource:
    """Makes a source of texts that are held in memory as tokens.

    x is a dictionary of int32, each (length,): ``token_ids``, ``segment_ids`` (1 for the second
    text) and ``is_token`` (0 for padding). y is a class, int32 (), or a number, float32 (1,).
    """
    rows = _read(Path(config.path), config)
    pieces = WordPiece(
        Path(config.vocabulary),
        [text for texts in rows.texts for text in texts],
        config.vocabulary_size,
        lowercase=config.lowercase,
    )
    is_class = config.task == "classification"
    classes = sorted(set(rows.labels)) if is_class else None
    samples = _encoded(rows, pieces, classes, config.path, config)
    train, validation, read_validation = np.arange(len(rows.labels)), None, None
    if config.validation_path is not None:
        others = _read(Path(config.validation_path), config)
        validation = np.arange(len(others.labels))
        read_validation = _reader(
            _encoded(others, pieces, classes, config.validation_path, config), config.length
        )
    elif config.validation_fraction != 0:
        fraction = config.validation_fraction or DEFAULT_VALIDATION_FRACTION
        labels = samples.targets if is_class else None
        train, validation = split_indices(len(train), fraction, config.split_seed, labels)
    found = f"{len(classes)} classes" if classes else "numbers"
    words = pieces.vocabulary
    meaning = Meaning(
        kind=config.name,
        description=(
            f"{' and '.join(config.texts)} of {config.path}, {found}, {words.size:,} tokens "
            f"(vocabulary {words.digest})"
        ),
        task=config.task,
        num_classes=len(classes) if classes else None,
        num_tokens=words.size,
    )
    read = _reader(samples, config.length)
    return IndexedSource(meaning, train, validation, read, read_validation=read_validation)


def _read(path: Path, config: TsvConfig) -> _Rows:
    """Reads a file whose first line names the columns."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            wanted = _columns(next(rows, []), path, config)
            found = _Rows([], [], [])
            for line, row in enumerate(rows, 2):
                if not row:
                    continue
                if len(row) <= max(wanted):
                    raise UserError(
                        f"{path}, line {line} has {len(row)} columns, and the first line names "
                        "more: columns are divided by tabs, and no text has one in it"
                    )
                *texts, label = (row[number] for number in wanted)
                found.texts.append(tuple(texts))
                found.labels.append(label)
                found.lines.append(line)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path} cannot be read as UTF-8 text with tabs ({error}): data tsv needs such a file, "
            "whose first line names the columns"
        ) from error
    if not found.labels:
        raise UserError(f"{path} has no rows below the names of its columns")
    return found


def _columns(names: Sequence[str], path: Path, config: TsvConfig) -> list[int]:
    """The numbers of the columns of the texts and of the label."""
    wanted = (*config.texts, config.label)
    if missing := [name for name in wanted if name not in names]:
        raise UserError(
            f"{path} has no column {', '.join(missing)}: its first line names "
            f"{', '.join(names) or 'none'}; give data.texts and data.label of these"
        )
    return [names.index(name) for name in wanted]


def _encoded(
    rows: _Rows, pieces: WordPiece, classes: list[str] | None, path: str, config: TsvConfig
) -> _Encoded:
    words, count = pieces.vocabulary, len(rows.labels)
    tokens = np.full((count, config.length), words.pad, np.int32)
    a_ends, ends = np.zeros((2, count), np.int32)
    texts = [pieces.numbers(list(column)) for column in zip(*rows.texts, strict=True)]
    for number, parts in enumerate(zip(*texts, strict=True)):
        a_end, whole = _joined(_shortened(parts, config.length), words)
        tokens[number, : len(whole)] = whole
        a_ends[number], ends[number] = a_end, len(whole)
    targets = _classes(rows, classes, path) if classes else _numbers(rows, path)
    return _Encoded(tokens, a_ends, ends, targets)


def _shortened(parts: Sequence[np.ndarray], length: int) -> list[np.ndarray]:
    """Leaves out the last tokens of the longer text, until all fits with its special tokens."""
    room, ends = length - 1 - len(parts), [len(part) for part in parts]
    if sum(ends) > room:
        shorter = min(*ends, room // 2) if len(ends) == 2 else 0
        longest = ends.index(max(ends))
        ends = [room - shorter if number == longest else shorter for number in range(len(ends))]
    return [part[:end] for part, end in zip(parts, ends, strict=True)]


def _joined(parts: Sequence[np.ndarray], words: Vocabulary) -> tuple[int, list[int]]:
    whole = [words.start, *parts[0], words.end]
    a_end = len(whole)
    for part in parts[1:]:
        whole += [*part, words.end]
    return a_end, whole


def _classes(rows: _Rows, classes: list[str], path: str) -> np.ndarray:
    number_of = {name: number for number, name in enumerate(classes)}
    if len(classes) < 2:
        raise UserError(f"{path} has one class alone, {classes[0]!r}: a classifier needs two")
    for label, line in zip(rows.labels, rows.lines, strict=True):
        if label not in number_of:
            raise UserError(
                f"{path}, line {line} has the class {label!r}, which the training file does not "
                f"have; its classes are {', '.join(classes)}"
            )
    return np.array([number_of[label] for label in rows.labels], np.int32)


def _numbers(rows: _Rows, path: str) -> np.ndarray:
    def read() -> Iterator[float]:
        for label, line in zip(rows.labels, rows.lines, strict=True):
            try:
                number = float(label)
            except ValueError:
                number = np.nan
            if not np.isfinite(number):
                raise UserError(
                    f"{path}, line {line} has the label {label!r}, and task regression needs "
                    "finite numbers; give data.task classification for classes"
                )
            yield number

    return np.fromiter(read(), np.float32, len(rows.labels))


def _reader(samples: _Encoded, length: int) -> Callable[[tf.Tensor], Pair]:
    tokens, a_ends, ends, targets = map(tf.constant, samples)
    if targets.dtype.is_floating:
        targets = targets[:, tf.newaxis]
    place = tf.range(length)

    def read(indices: tf.Tensor) -> Pair:
        a_end, end = (tf.gather(each, indices)[:, tf.newaxis] for each in (a_ends, ends))
        x = {
            "token_ids": tf.gather(tokens, indices),
            "segment_ids": tf.cast((place >= a_end) & (place < end), tf.int32),
            "is_token": tf.cast(place < end, tf.int32),
        }
        return x, tf.gather(targets, indices)

    return read
