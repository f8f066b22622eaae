"""Private state of Keras metrics."""

from __future__ import annotations

from collections.abc import Sequence

import keras


def set_variables(metric: keras.metrics.Metric, variables: Sequence[keras.Variable]) -> None:
    """Gives a copy of a metric its own variables: ``Metric._variables``, read by ``variables``.

    This bypasses Keras's attribute tracking, which the copy does not have. No public way makes a
    metric of the same kind without its arguments (since Keras 3.0).
    """
    vars(metric)["_variables"] = list(variables)
