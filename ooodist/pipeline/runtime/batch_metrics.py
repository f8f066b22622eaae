"""Updates a model's metrics on the last stage of its pipeline, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.runtime.work import in_structure
from ooodist.pipeline.stages import with_masks


class BatchMetrics:
    """Adds a micro-batch's outputs to the metrics of the model.

    Args:
        model: the whole model.
        splitter: knows the data.
        masked: indices of the outputs that have masks, which follow the outputs.
    """

    def __init__(self, model: keras.Model, splitter: BatchSplitter, masked: Sequence[int]) -> None:
        self._model = model
        self._masked = tuple(masked)
        self._structure = splitter.structure
        self._update = tf.function(self._add, autograph=False)

    def __call__(self, outputs: Sequence[tf.Tensor], targets: Sequence[tf.Tensor]) -> None:
        self._update(list(outputs), list(targets))

    def _add(self, outputs: Sequence[tf.Tensor], targets: Sequence[tf.Tensor]) -> None:
        y, *weights = tf.nest.pack_sequence_as(self._structure, targets)
        predicted = with_masks(outputs, len(self._model.outputs), self._masked)
        self._model.compute_metrics(
            x=None,
            y=y,
            y_pred=in_structure(self._model, predicted),
            sample_weight=weights[0] if weights else None,
        )
