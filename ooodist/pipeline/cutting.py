"""Cuts the stages of a rank for training all weights or some of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.runtime.boundary import TensorBoundary
from ooodist.pipeline.runtime.work import StageWork, compiled_loss
from ooodist.pipeline.stages import Stage

MOST_KEPT = 12  # works; they are kept because cutting a stage takes seconds


@dataclass
class Cutter:
    """Cuts the stages of a rank, and keeps what was cut for the latest selections.

    Attributes:
        stages: all stages of the model.
        splitter: knows the data.
        reads: for each of this rank's stages, by number, which inputs of the model it needs.
        boundaries: the boundary after each stage but the last.
        accumulators: gradient sums by name of the weight; missing ones are added.
        recompute: as in StageWork.
        buckets: divides the trained weights of a stage into those that are summed together, in the
            order of the model; None: W is not divided.
    """

    stages: Sequence[Stage]
    splitter: BatchSplitter
    reads: Mapping[int, Sequence[int]]
    boundaries: Sequence[TensorBoundary]
    accumulators: dict[str, tf.Variable]
    recompute: bool = False
    buckets: Callable[[Sequence[keras.Variable]], list[list[keras.Variable]]] | None = None
    _kept: OrderedDict[tuple[int, frozenset[str], int], StageWork] = field(
        default_factory=OrderedDict
    )

    def works(self, selected: Collection[str] | None = None) -> dict[int, StageWork]:
        """The works of this rank's stages, by number.

        Args:
            selected: names of the weights that are trained; None for all.
        """
        first = first_trained(self.stages, selected)
        return {number: self._work(number, selected, first) for number in self.reads}

    def _work(self, number: int, selected: Collection[str] | None, first: int) -> StageWork:
        stage = self.stages[number]
        trained = [
            variable
            for variable in stage.model.trainable_variables
            if selected is None or stage.name_of(variable) in selected
        ]
        names = frozenset(map(stage.name_of, trained))
        key = number, names, (number > first) - (number < first)
        if key not in self._kept:
            inputs, targets = self.splitter.specs()
            is_last = number == len(self.stages) - 1
            model = self.splitter.model
            buckets = [] if self.buckets is None else self.buckets(trained)
            if number <= first:  # its W has all of the backward pass, which begins at the end
                buckets.reverse()
            self._kept[key] = StageWork(
                stage,
                [inputs[place] for place in self.reads[number]],
                self.boundaries[number - 1].specs if number else (),
                targets if is_last else (),
                compiled_loss(model, self.splitter.structure) if is_last else None,
                self.accumulators,
                trained=trained,
                sends_gradients=number > first,
                forward_only=number < first,
                recompute=self.recompute,
                buckets=buckets if number >= first else (),
                samples=inputs[0].shape[0],
            )
            if len(self._kept) > max(MOST_KEPT, 3 * len(self.reads)):
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def first_trained(stages: Sequence[Stage], selected: Collection[str] | None) -> int:
    """The first stage with a trained weight; stages before it only run forward.

    Without a selection it is stage 0, whether that has weights or not.
    """
    if selected is None:
        return 0
    return next(
        stage.number
        for stage in stages
        if any(stage.name_of(variable) in selected for variable in stage.model.trainable_variables)
    )
