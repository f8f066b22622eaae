"""Selections to compare with: another importance, or another solver, in the place of ours.

``weight_magnitude`` and ``gradient_magnitude`` take the sum of the absolute values of a tensor, or
of its gradient, for its importance; ``published`` takes the importance that ooodist measures, and
ElasticTrainer's approximate solver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from published import select_published

from ooodist.elastic.controller import Controller
from ooodist.elastic.importance import Measured
from ooodist.step.backward import variable_names


def weight_magnitudes(model: keras.Model) -> dict[str, float]:
    """Returns the sum of the absolute values of each trained weight, by its name."""
    weights = model.trainable_variables
    return {
        name: float(np.abs(weight.numpy()).sum(dtype=np.float64))
        for name, weight in zip(variable_names(weights), weights, strict=True)
    }


def by_weight_magnitude(controller: Controller) -> None:
    """Lets a controller select by the magnitude of weights; nothing is measured."""
    controller.measure = lambda _: _important(weight_magnitudes(controller.model))


def by_gradient_magnitude(controller: Controller) -> None:
    """Lets a controller select by the magnitude of gradients, which are measured."""
    measure = controller.measure

    def gradients(batches: Sequence[Any]) -> Measured:
        return _important(measure(batches).gradient)

    controller.measure = gradients


def by_published_solver(controller: Controller) -> None:
    """Lets a controller select with ElasticTrainer's solver."""
    controller.solver = select_published


def _important(magnitudes: Mapping[str, float]) -> Measured:
    """Magnitudes as if they were what the loss falls by."""
    return Measured({name: -value for name, value in magnitudes.items()}, dict(magnitudes))


CHANGES: Mapping[str, Callable[[Controller], None]] = {
    "weight_magnitude": by_weight_magnitude,
    "gradient_magnitude": by_gradient_magnitude,
    "published": by_published_solver,
}
