"""Evaluates and predicts through the stages of a pipeline.

What the layers of each stage add to the loss is sent along from stage to stage, as one number. The
last stage adds the compiled loss and updates the metrics; all ranks of the pipeline learn of them.
Predictions go from the last stage to position 0 of each pipeline, and from there to rank 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.pipeline.assembly import Assembly
from ooodist.pipeline.evaluation.computing import (
    LOSS,
    Forward,
    Measured,
    Samples,
    Specs,
    by_name,
    shapes_of_metrics,
)
from ooodist.pipeline.evaluation.rows import gather_rows
from ooodist.pipeline.runtime.boundary import TensorBoundary
from ooodist.pipeline.runtime.forward_pass import LAG, ForwardPass, lags
from ooodist.pipeline.runtime.work import in_structure
from ooodist.pipeline.stages import for_evaluation, sent_specs
from ooodist.step.execution import Batch
from ooodist.util.digest import digest
from ooodist.util.patience import Patience

BATCHES_PER_CROSSING = 8  # in a call; stages wait for at most 1/9 of it, until all have a batch

Work = Callable[[Samples, Sequence[tf.Tensor]], Sequence[tf.Tensor]]


class Evaluation:
    """Evaluates and predicts; all ranks call its methods together.

    Args:
        assembly: stages and transport.
        engine: what the ranks agree with.
        patience: for how long a rank waits for others.

    Attributes:
        assembly: as given.
        batches_per_call: how many batches :meth:`outputs` should be given at a time, so that
            stages wait for a small part of the time only.
    """

    def __init__(self, assembly: Assembly, engine: Engine, patience: Patience) -> None:
        self.assembly = assembly
        self._engine = engine
        self._patience = patience
        self._model: keras.Model = assembly.splitter.model
        self._stages = for_evaluation(self._model, assembly.stages)
        self._rank_of = assembly.plan.schedule.rank_of
        crossings = lags(self._rank_of)[-1] // LAG
        self.batches_per_call = 1 + BATCHES_PER_CROSSING * crossings
        self._is_direct = any(boundary.direct for boundary in assembly.boundaries)
        self._specs: dict[Specs, list[Specs]] = {}
        self._pass: ForwardPass[Samples] | None = None
        self._predicting = self._works(adds_loss=False)

    def _works(self, *, adds_loss: bool) -> dict[int, Work]:
        return {
            number: Forward(self._stages[number], reads, adds_loss=adds_loss)
            for number, reads in self.assembly.reads.items()
        }

    @functools.cached_property
    def _shapes(self) -> dict[str, tf.TensorShape]:
        """The shapes of the metrics, once they are built."""
        return shapes_of_metrics(self._model)

    @functools.cached_property
    def _measuring(self) -> dict[int, Work]:
        works, last = self._works(adds_loss=True), len(self._stages) - 1
        if self.assembly.has_loss:
            reads = self.assembly.reads[last]
            works[last] = Measured(self._model, self._stages[last], reads, list(self._shapes))
        return works

    def metrics(self, batches: Iterator[Batch]) -> Iterator[dict[str, np.ndarray]]:
        """The metrics after each batch, the same on all ranks of a pipeline.

        Their states change on the rank of the last stage alone.

        Args:
            batches: (x, y) or (x, y, sample_weight), the same on all ranks of a pipeline.
        """
        size = sum(shape.num_elements() for shape in self._shapes.values())
        rows = self._passed(
            batches,
            self._measuring,
            (LOSS,),
            lambda _: (tf.TensorSpec((size,), tf.float64),),
            range(self.assembly.ranks.positions),
        )
        return (by_name(row, self._shapes) for (row,) in rows)

    def outputs(self, batches: Iterable[Batch]) -> Any:
        """The outputs of the model for all samples of these batches, in its structure.

        Args:
            batches: x, (x,) or with what follows x for training, the same on all ranks of a
                pipeline; one at least.

        Returns:
            tensors of shape (samples, ...) at position 0 of each pipeline; an empty one on others.
        """
        count = len(self._model.outputs)
        passed = list(
            self._passed(iter(batches), self._predicting, (), lambda sent: sent[:count], [0])
        )
        if self.assembly.ranks.position:
            return tf.zeros([0])
        found = [in_structure(self._model, outputs[:count]) for outputs in passed]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *found)

    def gathered(self, outputs: Any) -> Any:
        """The outputs of all pipelines, one behind the other, on rank 0; None on others.

        Args:
            outputs: arrays of shape (samples, ...) at position 0 of each pipeline, or what Keras
                makes of outputs whose shapes differ; ignored on others.

        Raises:
            UserError: the outputs have different shapes; on all ranks.
        """
        ranks = self.assembly.ranks
        if ranks.replicas == 1:
            return None if ranks.position else outputs
        found = [] if ranks.position else tf.nest.flatten(outputs)
        kinds = str([(array.dtype, array.shape[1:]) for array in found])
        if not all(isinstance(array, np.ndarray) for array in found):
            kinds = f"ragged, in pipeline {ranks.replica}"
        digests = self._engine.gather(np.frombuffer(digest(kinds.encode()), np.uint8))
        of_pipelines = digests[:: ranks.positions]
        if (of_pipelines != of_pipelines[0]).any():
            raise UserError(
                f"the outputs of model {self._model.name} have different shapes in different "
                f"batches, which cannot be put together over {ranks.replicas} pipelines; pad the "
                "samples to one length, or predict with data: 1"
            )
        if ranks.position:
            return None
        rows = gather_rows(found, ranks.peers, self._patience)
        return None if rows is None else tf.nest.pack_sequence_as(outputs, rows)

    # The pass of the batches

    def _passed(
        self,
        batches: Iterator[Batch],
        works: Mapping[int, Work],
        added: Specs,
        results: Callable[[Specs], Specs],
        readers: Collection[int],
    ) -> ForwardPass[Samples]:
        """Begins a pass of these batches.

        Args:
            batches: as the data yields them.
            works: what this rank's stages compute, by number.
            added: what is sent from stage to stage besides what the model needs.
            results: what the last stage's work makes, given what the stage would send.
            readers: positions that get it.
        """
        if self._pass is not None:
            self._pass.finish()

        def boundaries(samples: Samples) -> list[TensorBoundary]:
            *between, last = self._specs_of(samples.specs)
            specs = [*((*sent, *added) for sent in between), results(last)]
            return [TensorBoundary(each, direct=self._is_direct) for each in specs]

        self._pass = ForwardPass(
            self._rank_of,
            self.assembly.transport,
            works,
            boundaries,
            readers,
            map(self._samples, batches),
        )
        return self._pass

    def _specs_of(self, inputs: Specs) -> list[Specs]:
        """What each stage sends for a batch with these inputs of the model."""
        if inputs not in self._specs:
            self._specs[inputs] = sent_specs(self._model, self._stages, inputs, training=False)
        return self._specs[inputs]

    def _samples(self, batch: Batch) -> Samples:
        """What this rank needs of a batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        inputs = self.assembly.splitter.inputs_of(x)
        specs = tuple(map(tf.TensorSpec.from_tensor, inputs))
        needed = {at: inputs[at] for places in self.assembly.reads.values() for at in places}
        if not self.assembly.has_loss:
            return Samples(specs, needed)
        return Samples(specs, needed, y, sample_weight)
