"""Metrics by which models are compared: which way is better, what is possible, and which decides.

A metric is known by its name or by the end of it: ``top_k_accuracy`` is an accuracy. A model may
have others, but they decide nothing.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ooodist.errors import UserError
from ooodist.util.yaml_dataclass import Range

if TYPE_CHECKING:
    from ooodist.zoo.entry import Meta


@dataclass(frozen=True)
class Metric:
    """A kind of metric.

    Attributes:
        rises: whether larger values are better.
        bounds: the possible values; None for any finite number.
    """

    rises: bool
    bounds: Range | None = None

    @property
    def is_share(self) -> bool:
        """Whether its values are 0 to 1, and 1 is the best."""
        return self.bounds == Range(0, 1)


_SHARE = Metric(True, Range(0, 1))
_ERROR = Metric(False, Range(0))

KNOWN = {  # without one of its task, the first of these decides that a model has
    "accuracy": _SHARE,
    "f1": _SHARE,
    "f1_score": _SHARE,
    "auc": _SHARE,
    "iou": _SHARE,
    "precision": _SHARE,
    "recall": _SHARE,
    "perplexity": Metric(False, Range(1)),
    "rmse": _ERROR,
    "mae": _ERROR,
    "mse": _ERROR,
    "error": _ERROR,  # Keras's root_mean_squared_error, and others
    "r2_score": Metric(True),
    "crossentropy": _ERROR,
    "loss": Metric(False),
}
OF_TASK = {  # the tasks of job files
    "classification": "accuracy",
    "language": "perplexity",
    "regression": "rmse",
    "pretraining": "loss",
}


@functools.lru_cache(maxsize=1000)
def kind_of(name: str) -> str | None:
    """The known metric that this name is, or ends in; None if there is none."""
    return next((kind for kind in KNOWN if name == kind or name.endswith(f"_{kind}")), None)


def metric_of(judge: str) -> Metric:
    """The metric of a name that :func:`judge_of` returned."""
    kind = kind_of(judge)
    assert kind is not None
    return KNOWN[kind]


def check(name: str, value: float) -> None:
    """Raises UserError for a value that is not finite or that the metric cannot have."""
    bounds = KNOWN[kind].bounds if (kind := kind_of(name)) else None
    if not (math.isfinite(value) and (bounds is None or bounds.contains(value))):
        hint = " (divide percents by 100)" if bounds == _SHARE.bounds else ""
        raise UserError(f"{name} is {value}; it must be {bounds or 'a finite number'}{hint}")


def judge_of(meta: Meta) -> str | None:
    """The name of the metric that decides how good a model is; None if there is none.

    It is the one that ``judged_by`` names, or that of the task. If the model does not have it, it
    is the first one of ``KNOWN`` that it has.
    """
    preferred = meta.judged_by or OF_TASK.get(meta.task, "")
    if preferred in meta.metrics and kind_of(preferred):
        return preferred
    order = [*KNOWN]
    kinds = ((kind_of(name), name) for name in meta.metrics)
    known = [(order.index(kind), len(name), name) for kind, name in kinds if kind is not None]
    return min(known)[-1] if known else None


class Quality:
    """How good models are, from 0 to 1, each by the metric that decides.

    A metric from 0 to 1 is the quality itself. For others, such as a loss, it is the share of the
    models of the same task, data set and metric that are worse; equal ones count half.

    Args:
        metas: metadata of all models to compare.
    """

    def __init__(self, metas: Iterable[Meta]) -> None:
        self._values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for meta in metas:
            judge = judge_of(meta)
            if judge is not None and not metric_of(judge).is_share:
                self._values[meta.task, meta.dataset, judge].append(meta.metrics[judge])
        for values in self._values.values():
            values.sort()

    def of(self, meta: Meta) -> float | None:
        """The quality of one of these models; None if it is unknown."""
        judge = judge_of(meta)
        if judge is None:
            return None
        value, metric = meta.metrics[judge], metric_of(judge)
        if metric.is_share:
            return value
        values = self._values[meta.task, meta.dataset, judge]
        below = (bisect.bisect_left(values, value) + bisect.bisect_right(values, value)) / 2
        return (below if metric.rises else len(values) - below) / len(values)
