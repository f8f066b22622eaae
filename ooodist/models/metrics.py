"""Labels that do not count."""

from typing import Any

import keras
from keras import ops

NO_LABEL = -1
"""A label that neither losses nor metrics count."""


@keras.saving.register_keras_serializable(package="ooodist")
class LabeledAccuracy(keras.metrics.SparseCategoricalAccuracy):  # type: ignore[misc, unused-ignore]
    """How often the largest logit is at the label; NO_LABEL does not count."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        counts = ops.cast(ops.not_equal(y_true, NO_LABEL), self.dtype)
        if sample_weight is not None:
            counts = ops.multiply(counts, ops.cast(sample_weight, self.dtype))
        return super().update_state(ops.maximum(y_true, 0), y_pred, counts)
