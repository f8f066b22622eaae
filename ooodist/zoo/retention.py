"""The policy by which a zoo keeps models when not all fit, and refuses inaccurate ones.

The value of a model rises with its accuracy and with how often and how recently it was used. A use
counts 1 at first, and half as much after each half-life::

    uses(t)  = sum over uses at s of 2^-((t - s) / half-life)      being added counts as a use
    value(t) = (1/2 + accuracy) uses(t)                            unknown accuracy: 1/2

The sum needs no list of uses: its value at the last use is stored (:func:`used`). The zoo keeps the
models that fit the capacity and have the largest total value: a knapsack problem, which is solved
exactly, to 15 digits, where that takes about a second. Else the log says how much value is lost.

A model that is far less accurate than others of its task and data set is refused: its training went
wrong, and its children would inherit that. Accuracies of different tasks are never compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ooodist.elastic.selection.knapsack import MOST_TRIED, best_filling
from ooodist.errors import UserError

if TYPE_CHECKING:
    from ooodist.zoo.entry import Meta
    from ooodist.zoo.index import Row

logger = logging.getLogger("ooodist")

EXACT = 2**50
HALF_LIFE = 30 * 24 * 3600.0  # seconds
LEAST_OTHERS = 5  # the spread of fewer is meaningless
LEAST_SCORE = -3.0
LEAST_DEVIATION = 0.02  # of accuracies; if most are equal, the measured one is 0
MAD_TO_DEVIATION = 1.4826  # for a normal distribution


def used(uses: float, last: float, now: float) -> float:
    """The decayed uses after one more use.

    Args:
        uses: decayed uses as of the last use.
        last: time of the last use, in Unix seconds.
        now: time of the new use, in Unix seconds.
    """
    return decayed(uses, last, now) + 1


def decayed(uses: float, last: float, now: float) -> float:
    """Uses as of ``last`` decayed until ``now``, both in Unix seconds."""
    return uses * 2.0 ** (-max(0.0, now - last) / HALF_LIFE)  # clocks differ between machines


def value(accuracy: float | None, uses: float) -> float:
    """The value of a model.

    Args:
        accuracy: 0 to 1; None if unknown.
        uses: uses, decayed until now.
    """
    return (0.5 + (0.5 if accuracy is None else accuracy)) * uses


def keep(sizes: Sequence[int], values: Sequence[float], capacity: int) -> npt.NDArray[np.bool_]:
    """A mask, shape (models,), of the most valuable set of models that fits.

    Args:
        sizes: sizes of the models in bytes.
        values: values of the models, in any unit, not negative.
        capacity: most bytes of the set.
    """
    kept = np.zeros(len(sizes), bool)
    if kept.size == 0:
        return kept
    # Whole numbers whose sum is exact in float64, too.
    shares = np.array(values) / (max(values) or 1.0)
    importance = np.maximum(1, np.rint(shares * (EXACT / kept.size)).astype(np.int64))
    filling = best_filling(
        np.array(sizes, np.int64),
        importance,
        np.array([[size <= capacity for size in sizes]]),
        np.array([capacity], np.int64),
        MOST_TRIED,
    )
    if filling.missing:
        lost = filling.missing / importance.sum()
        logger.info("zoo: at most %.2g of the value of all models is lost", lost)
    kept[filling.items] = True
    return kept


def leaving(rows: Sequence[Row], new: Row, capacity: int, now: float) -> list[str]:
    """The ids of the models that must leave a zoo so that a new one fits.

    Args:
        rows: models in the zoo.
        new: the new model, which is not among them.
        capacity: most bytes of all models.
        now: current time in Unix seconds.

    Raises:
        UserError: the new model itself would have to leave.
    """
    everything = [*rows, new]
    sizes = [row.bytes for row in everything]
    if sum(sizes) <= capacity:
        return []
    kept = keep(sizes, [row.worth(now) for row in everything], capacity)
    if not kept[-1]:
        raise UserError(
            f"model {new.id} has {new.bytes} bytes and does not fit into the zoo of {capacity} "
            "bytes beside models that are worth more; raise the capacity, or evict models"
        )
    return [row.id for row, stays in zip(rows, kept[:-1], strict=True) if not stays]


def check_accuracy(meta: Meta, others: Iterable[Meta]) -> None:
    """Raises UserError for an accuracy far below that of models of the same task and data set.

    The distance from the median is measured in robust deviations (1.48 times the median absolute
    deviation, but at least 0.02) and must be at least -3. It is checked only against five or more
    models, and only if both task and data set are given: otherwise they may not be comparable.

    Args:
        meta: metadata of the new model, checked by :func:`ooodist.zoo.entry.check_meta`.
        others: metadata of the models in the zoo.
    """
    accuracy = meta.accuracy
    if accuracy is None or not (meta.task and meta.dataset):
        return
    same = [
        other.accuracy
        for other in others
        if (other.task, other.dataset) == (meta.task, meta.dataset) and other.accuracy is not None
    ]
    if len(same) < LEAST_OTHERS:
        return
    median = float(np.median(same))
    deviation = MAD_TO_DEVIATION * float(np.median(np.abs(np.array(same) - median)))
    deviation = max(deviation, LEAST_DEVIATION)
    score = (accuracy - median) / deviation
    if score < LEAST_SCORE:
        raise UserError(
            f"accuracy is {accuracy:.4g}, far below the {len(same)} models of task {meta.task} and "
            f"data set {meta.dataset} in the zoo (median {median:.4g}, {-score:.1f} deviations of "
            f"{deviation:.2g}); it must be at least {median + LEAST_SCORE * deviation:.4g}: train "
            "the model longer, or give it a task or data set of its own"
        )
