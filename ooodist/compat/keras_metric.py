"""What Keras keeps in a metric."""

from __future__ import annotations

from collections.abc import Sequence

import keras


def set_variables(metric: keras.metrics.Metric, variables: Sequence[keras.Variable]) -> None:
    """Gives a copy of a metric variables of its own: ``Metric._variables``, what ``variables`` is.

    Set past Keras's tracking of attributes, which the copy does not have. No public way makes a
    metric of a kind without its arguments (since Keras 3.0).
    """
    vars(metric)["_variables"] = list(variables)
