"""Which models a zoo keeps when not all of them fit, and which it does not take at all.

A model is worth the more the more accurate it is, and the more often and the later it was used. A
use counts one at first, and half of it after each half-life::

    uses(t)  = sum over uses at s of 2^-((t - s) / half-life)      being added counts as a use
    value(t) = (1/2 + accuracy) uses(t)                            unknown accuracy: 1/2

The sum needs no list of uses: it is kept as it was at the last one (:func:`used`). Of the models
that there are, those are kept which are worth the most together and fit the capacity: a knapsack,
solved exactly.

A model that is far less accurate than others of its task and data set is refused: its training went
wrong, and what starts from it would start there. Accuracies of different tasks are never compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp

from ooodist.errors import UserError

if TYPE_CHECKING:
    from ooodist.zoo.entry import Meta
    from ooodist.zoo.index import Row

HALF_LIFE = 30 * 24 * 3600.0  # seconds
LEAST_OTHERS = 5  # fewer have no spread that says anything
LEAST_SCORE = -3.0
LEAST_DEVIATION = 0.02  # of accuracies; where many are equal, the measured one would be 0
MAD_TO_DEVIATION = 1.4826  # of a normal distribution


def used(uses: float, last: float, now: float) -> float:
    """Decayed uses after one more.

    Args:
        uses: decayed uses at the last one.
        last: unix seconds of that.
        now: unix seconds.
    """
    return decayed(uses, last, now) + 1


def decayed(uses: float, last: float, now: float) -> float:
    """What the uses at ``last`` count at ``now``, both in unix seconds."""
    return uses * 2.0 ** (-max(0.0, now - last) / HALF_LIFE)  # clocks of machines differ


def value(accuracy: float | None, uses: float) -> float:
    """What a model is worth.

    Args:
        accuracy: 0 to 1; None if it is not known.
        uses: decayed until now.
    """
    return (0.5 + (0.5 if accuracy is None else accuracy)) * uses


def keep(sizes: Sequence[int], values: Sequence[float], capacity: int) -> npt.NDArray[np.bool_]:
    """Says of each model whether it is among the most valuable ones that fit together.

    Args:
        sizes: bytes.
        values: of the models, in any unit, not negative.
        capacity: bytes.
    """
    kept = np.zeros(len(sizes), bool)
    single = np.array([number for number, size in enumerate(sizes) if size <= capacity], int)
    if single.size == 0:
        return kept
    worth = np.array(values, float)[single]
    size = [sizes[number] for number in single]
    # In units of the largest, as the solver's tolerances are absolute.
    scale = max(float(worth.max()), np.finfo(float).tiny)
    rows = [np.array(size) / capacity]
    limits = [1.0]
    while True:
        found = milp(
            -worth / scale * 1000,
            integrality=np.ones(single.size),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(np.array(rows), -np.inf, limits),
            options={"mip_rel_gap": 0.0},
        )
        chosen = found.x > 0.5
        if sum(each for each, is_in in zip(size, chosen, strict=True) if is_in) <= capacity:
            kept[single[chosen]] = True
            return kept
        # By less than the solver's tolerance too large: not all of these, then.
        rows.append(chosen.astype(float))
        limits.append(float(chosen.sum() - 1))


def leaving(rows: Sequence[Row], new: Row, capacity: int, now: float) -> list[str]:
    """The models that leave a zoo so that a new one fits.

    Args:
        rows: models that are there.
        new: is not among them.
        capacity: bytes.
        now: unix seconds.

    Returns:
        Their ids.

    Raises:
        UserError: the new one itself would be what leaves.
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
    """Raises UserError for an accuracy far below those of the same work.

    The distance from the median is taken in robust deviations: 1.48 times the median distance, but
    at least 0.02. It must not be below -3. That is asked only if there are five others, and if both
    the task and the data set are said: else nobody knows whether it is the same work.

    Args:
        meta: of the new model, checked as :func:`ooodist.zoo.entry.check_meta` does.
        others: of those in the zoo.
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
