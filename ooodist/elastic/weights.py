"""Which of a model's weights are named to be trained always, and how much of them is trained."""

from __future__ import annotations

from collections.abc import Collection

import keras
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.graph.ops import num_bytes
from ooodist.settings.elastic import ElasticConfig
from ooodist.step.backward import variable_names
from ooodist.util.yaml_dataclass import did_you_mean


def always_selected(config: ElasticConfig, names: Collection[str]) -> frozenset[str]:
    """Those of the trained weights, by name, that ``always`` selects. Raises UserError."""
    found: set[str] = set()
    for wanted in config.always:
        fitting = {n for n in names if n == wanted or f"/{wanted}/" in f"/{n}"}
        if not fitting:
            layers = sorted({name.split("/")[-2:][0] for name in names})
            raise UserError(
                f"elastic.always names {wanted}{did_you_mean(wanted, layers)}, of which no "
                f"weight is trained; give a layer, as {layers[0]}, or a weight, as {min(names)}"
            )
        found |= fitting
    return frozenset(found)


def shares(
    model: keras.Model, selected: Collection[str] | None, exchanges: bool
) -> dict[str, float]:
    """Which share of the weights is trained, and the bytes of gradients that are exchanged.

    Args:
        selected: the weights' names; None: all.
        exchanges: whether a weight's gradients are exchanged between ranks.
    """
    weights = model.trainable_variables
    sizes = (num_bytes(tf.TensorSpec(weight.shape, weight.dtype)) for weight in weights)
    size = dict(zip(variable_names(weights), sizes, strict=True))
    trained = sum(size[name] for name in (size if selected is None else selected))
    return {
        "elastic_share": trained / sum(size.values()),
        "elastic_exchanged_bytes": float(trained if exchanges else 0),
    }
