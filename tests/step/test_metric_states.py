"""Which metrics' states may be added up."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from ooodist.errors import UserError
from ooodist.step.metric_states import check_adds_up

LABELS, SCORES = (
    np.float32([[0, 1], [1, 0], [1, 0]]),
    np.float32([[0.2, 0.8], [0.6, 0.4], [0.3, 0.7]]),
)


class Peak(keras.metrics.Metric):
    def __init__(self) -> None:
        super().__init__(name="peak")
        self.peak = self.add_variable((), "zeros", name="highest")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.peak.assign(keras.ops.maximum(self.peak, keras.ops.max(keras.ops.abs(y_pred))))

    def result(self) -> Any:
        return self.peak


class Last(Peak):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.peak.assign(keras.ops.mean(y_pred))


@pytest.mark.parametrize("kind", [Peak, Last])
def test_what_is_no_sum_is_refused(kind: type[Peak]) -> None:
    message = f"metric peak: {kind.__name__}.update_state does not add to its variable highest"
    with pytest.raises(UserError, match=message):
        check_adds_up(kind(), LABELS, SCORES)


@pytest.mark.parametrize(
    "metric",
    [
        keras.metrics.Mean(),
        keras.metrics.AUC(),
        keras.metrics.CategoricalAccuracy(),
        keras.metrics.F1Score(),
        keras.metrics.MeanSquaredError(),
        keras.metrics.OneHotMeanIoU(2),
        keras.metrics.PrecisionAtRecall(0.5),
        keras.metrics.R2Score(),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_the_sums_of_keras_own_are_known(metric: keras.metrics.Metric) -> None:
    both = (
        (SCORES,)
        if isinstance(metric, keras.metrics.Mean) and metric.name == "mean"
        else (LABELS, SCORES)
    )
    metric.update_state(*both)  # some make their variables here
    check_adds_up(metric, *both)
