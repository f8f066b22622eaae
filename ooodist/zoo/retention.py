"""The policy by which a zoo keeps models when not all fit, and refuses bad ones.

The value of a model rises with its quality (see metrics.py) and with how often and how recently it
was used. A use counts 1 at first, and half as much after each half-life::

    uses(t)  = sum over uses at s of 2^-((t - s) / half-life)      being added counts as a use
    value(t) = (1/2 + quality) uses(t)                             unknown quality: 1/2

The sum needs no list of uses: its value at the last use is stored (:func:`used`). The zoo keeps the
models that fit the capacity and have the largest total value: a knapsack problem, which is solved
exactly, to 15 digits, where that takes about a second. Else the log says how much value is lost.

A model that is far worse than others of its task and data set is refused: its training went wrong,
and its children would inherit that. Metrics of different tasks are never compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ooodist.elastic.selection.knapsack import MOST_TRIED, best_filling
from ooodist.errors import UserError
from ooodist.zoo import metrics

if TYPE_CHECKING:
    from ooodist.zoo.entry import Meta
    from ooodist.zoo.index import Row

logger = logging.getLogger("ooodist")

EXACT = 2**50
HALF_LIFE = 30 * 24 * 3600.0  # seconds
LEAST_OTHERS = 5  # the spread of fewer is meaningless
MOST_DEVIATIONS = 3.0
LEAST_DEVIATION = 0.02  # of the median, or of 1; if most are equal, the measured one is 0
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


def value(quality: float | None, uses: float) -> float:
    """The value of a model.

    Args:
        quality: 0 to 1; None if unknown.
        uses: uses, decayed until now.
    """
    return (0.5 + (0.5 if quality is None else quality)) * uses


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
    quality = metrics.Quality(row.meta for row in everything)
    worths = [row.worth(now, quality.of(row.meta)) for row in everything]
    kept = keep(sizes, worths, capacity)
    if not kept[-1]:
        raise UserError(
            f"model {new.id} has {new.bytes} bytes and does not fit into the zoo of {capacity} "
            "bytes beside models that are worth more; raise the capacity, or evict models"
        )
    return [row.id for row, stays in zip(rows, kept[:-1], strict=True) if not stays]


def check_metric(meta: Meta, others: Iterable[Meta]) -> None:
    """Raises UserError for a model far worse than those of the same task and data set.

    The metric that decides for the new one is compared. Its distance from the median is measured in
    robust deviations (1.48 times the median absolute deviation, but at least 0.02, or 2 % of the
    median for metrics that are not 0 to 1) and must be at most 3. It is checked only against five
    or more models, and only if both task and data set are given: otherwise they may not be
    comparable.

    Args:
        meta: metadata of the new model, checked by :func:`ooodist.zoo.entry.check_meta`.
        others: metadata of the models in the zoo.
    """
    judge = metrics.judge_of(meta)
    if judge is None or not (meta.task and meta.dataset):
        return
    same = [
        other.metrics[judge]
        for other in others
        if (other.task, other.dataset) == (meta.task, meta.dataset) and judge in other.metrics
    ]
    if len(same) < LEAST_OTHERS:
        return
    value, metric = meta.metrics[judge], metrics.metric_of(judge)
    median = float(np.median(same))
    deviation = MAD_TO_DEVIATION * float(np.median(np.abs(np.array(same) - median)))
    scale = 1.0 if metric.is_share else abs(median) or 1.0
    deviation = max(deviation, LEAST_DEVIATION * scale)
    sign, side, bound = (1, "below", "least") if metric.rises else (-1, "above", "most")
    worse = sign * (median - value) / deviation
    if worse > MOST_DEVIATIONS:
        limit = median - sign * MOST_DEVIATIONS * deviation
        raise UserError(
            f"{judge} is {value:.4g}, far {side} the {len(same)} models of task {meta.task} and "
            f"data set {meta.dataset} in the zoo (median {median:.4g}, {worse:.1f} deviations of "
            f"{deviation:.2g}); it must be at {bound} {limit:.4g}: train the model longer, or give "
            "it a task or data set of its own"
        )
