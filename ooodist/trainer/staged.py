"""Replaces Keras's evaluation of a model of which each rank computes only a part.

Keras's loops stay: their callbacks, progress bars and steps work as before. Replaced are, on the
instance:

* ``make_test_function``: a batch goes through the stages; some batches are read ahead, so that all
  ranks have one to compute.
* ``make_predict_function``, ``predict``: the same for predictions, several batches a call; arrays
  are sharded over the pipelines, and rank 0 gets the predictions of all.
* ``test_on_batch``, ``predict_on_batch``: raise UserError.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import keras

from ooodist.errors import UserError
from ooodist.step.execution import Batch
from ooodist.trainer import arrays
from ooodist.trainer.consistency.meeting import meet
from ooodist.trainer.given.arguments import KerasMethod

if TYPE_CHECKING:
    from ooodist.trainer.fit import DistributedFit


class StagedMethods:
    """Replaces these methods of a model.

    Args:
        fit: what has replaced its methods for training.
    """

    def __init__(self, fit: DistributedFit) -> None:
        self._fit = fit
        self._model = model = fit.strategy.model
        self._metrics: Iterator[dict[str, Any]] | None = None  # of the evaluation under way
        self._steps: int | None = None  # batches of the evaluation or prediction; None: all
        self._plain_predict = KerasMethod(model, "predict", self._predict)
        model.make_test_function = self._make_test_function
        model.make_predict_function = self._make_predict_function
        model.test_on_batch = _refused("test_on_batch", "evaluate")
        model.predict_on_batch = _refused("predict_on_batch", "predict")

    def begin_evaluation(self, given: Mapping[str, Any], *, inside_fit: bool) -> None:
        """Begins ``evaluate(**given)``.

        Raises:
            UserError: there are no stages yet, and none can be made, or the model evaluates in a
                way of its own; on all ranks.
        """
        _check_step(self._model, "test_step")
        if not inside_fit:  # fit has made stages
            self._fit.strategy.inner.evaluation(
                lambda: arrays.without_optionals(arrays.first_batch(given))
            )
        self._metrics, self._steps = None, given.get("steps")

    def _make_test_function(self, force: bool = False) -> None:
        def test_function(iterator: Iterator[Batch]) -> dict[str, Any]:
            if self._metrics is None:
                batches = map(arrays.without_optionals, itertools.islice(iterator, self._steps))
                self._metrics = self._fit.strategy.inner.evaluation(None).metrics(batches)
            found = list(itertools.islice(self._metrics, self._model.steps_per_execution))
            if not found:
                raise StopIteration
            return found[-1]

        self._model.test_function = test_function

    def _make_predict_function(self, force: bool = False) -> None:
        def predict_function(batches: list[Batch]) -> Any:
            # Keras reads whole calls, also where steps ends in the middle of one.
            batches = batches[: self._steps]
            if self._steps is not None:
                self._steps -= len(batches)
            return self._fit.strategy.inner.evaluation(None).outputs(batches)

        self._model.predict_function = predict_function

    def _predict(self, *args: Any, **kwargs: Any) -> Any:
        """The predictions in the order of the samples on rank 0, and None on others."""
        given = self._plain_predict.bind(args, kwargs)
        fit, model = self._fit, self._model
        _check_step(model, "predict_step")
        meet(fit.engine, "predict")
        fit.check_callbacks(given.get("callbacks"))
        fit.synchronize()
        fit.strategy.follow_rank_0()
        evaluation = fit.strategy.inner.evaluation(None)
        if arrays.is_arrays(given["x"]):
            given["x"] = arrays.prediction_part(given["x"], *fit.strategy.shard)
        elif self._plain_predict.made(given["x"], "x"):
            given["x"] = arrays.prediction_batches(given["x"], *fit.strategy.shard)
        if fit.engine.rank:
            given["verbose"] = 0
        self._steps = given.get("steps")
        before, model.steps_per_execution = model.steps_per_execution, evaluation.batches_per_call
        try:
            outputs = self._plain_predict(**given)
        finally:
            model.steps_per_execution = before
        return evaluation.gathered(outputs)


def _check_step(model: keras.Model, name: str) -> None:
    """Raises UserError if the class of a model has a step of this name of its own."""
    if getattr(type(model), name) is not getattr(keras.Model, name):
        raise UserError(
            f"{type(model).__name__} has a {name} of its own, which cannot be split into stages; "
            "give what it does as a loss, as metrics or as layers"
        )


def _refused(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UserError(
            f"{name} gives one batch, but the stages of a pipeline compute several at a time; "
            f"use {instead}"
        )

    return refuse
