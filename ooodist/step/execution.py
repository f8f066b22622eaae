"""An execution: several training steps traced into one function.

Within an execution nothing waits for a whole step: the forward pass of step t + 1 starts when the
weights of its first layer are updated, while the rest of step t is still being exchanged::

    compute   | F B of step 1      | F B of step 2      |
    exchange            |---- gradients of step 1 ----|---- of step 2 ----|

Each execution ends with all its updates applied, or leaves some to the next, which begins with them
(:mod:`ooodist.step.carried`). So training is exact synchronous SGD: no gradient is stale, none is
lost.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from ooodist.compat.tensorflow_graph import handle_of
from ooodist.errors import UserError
from ooodist.graph.units import Gradient
from ooodist.step.all_ranks.batch_norm import synchronizing
from ooodist.step.all_ranks.losses import of_whole_batch
from ooodist.step.backward import OrderedBackward, variable_names
from ooodist.step.carried import CarriedGradients, CarriedUpdates, Carrying
from ooodist.step.compiled import CompiledStep
from ooodist.step.feature import Feature, through
from ooodist.step.finiteness.finite import Checked, GradientSums, GradientWatch
from ooodist.step.finiteness.loss_scaling import EarlyVerdict, can_be_early
from ooodist.step.finiteness.skipping import Skipping
from ooodist.step.notices import Notices
from ooodist.step.optimizer import not_updating, scaling_parts, updating_one_by_one
from ooodist.step.sharding.sharded import ShardedOptimizer
from ooodist.step.tape import watch_gradients

logger = logging.getLogger("ooodist")

_NO_NOTICES = Notices().own()

Batch = Any
Run = Callable[[Sequence[Batch]], dict[str, tf.Tensor]]  # trains on any number of batches


class Execution:
    """Runs a Keras model's ``train_step`` on the batches of one execution.

    Args:
        model: a compiled model; its ``train_step`` may be a custom one.
        backward: orders and exchanges each step's gradients.
        accumulate: how many batches make one update (and one exchange).
        updating: makes a context that is entered around each update while it is traced, or None.
        watch: is told whether gradients are finite; None: they are not checked.
        features: what else is done with the gradients of each step, in this order.
        compiled: whether XLA compiles each step, which then has no order; not with ``accumulate``,
            ``carrying``, skipped steps or a selection.
        carrying: holds what the model's executions leave to each other, as the plan says; None:
            they leave nothing.
        element_spec: returns the ``element_spec`` of what the next batches are read from, whose
            shapes steps are traced with, as Keras does; None, or returns it: those of the batches.
        sharded: gives all ranks what each updates; None: each updates all weights.

    Raises:
        UserError: ``accumulate`` > 1 with a custom ``train_step``, which may do anything with its
            gradients.
    """

    def __init__(
        self,
        model: keras.Model,
        backward: OrderedBackward,
        *,
        accumulate: int = 1,
        updating: Callable[[], AbstractContextManager[None]] | None = None,
        watch: GradientWatch | None = None,
        features: Sequence[Feature] = (),
        compiled: bool = False,
        carrying: Carrying | None = None,
        element_spec: Callable[[], Any] | None = None,
        sharded: ShardedOptimizer | None = None,
    ) -> None:
        if accumulate > 1 and type(model).train_step is not keras.Model.train_step:
            raise UserError(
                f"accumulate is {accumulate}, but {type(model).__name__} has a train_step of its "
                "own; accumulate there, or set accumulate to 1"
            )
        self.model = model
        self.backward = backward
        self.accumulate = accumulate
        self._updating = updating or contextlib.nullcontext
        self._watch = watch
        self._features = features
        self._carrying = carrying
        self._compiled = CompiledStep(model, backward, self._train_step) if compiled else None
        self._sharded = sharded
        self._element_spec = element_spec or (lambda: None)
        self._carried: CarriedUpdates | None = None  # made before the first call
        self._verdict: EarlyVerdict | None = None  # made when it is first traced
        self._sums = GradientSums()
        self._checked: dict[int, Sequence[Checked]] = {}
        self._traced = tf.function(self._run, autograph=False, reduce_retracing=True)
        self._spec: Any = None  # of the batches of the last call
        self._traced_for: set[tuple[int, bool]] = set()  # such calls on batches of this spec

    def __call__(self, batches: Sequence[Batch]) -> dict[str, tf.Tensor]:
        """Trains on ``batches``, one update for each ``accumulate`` of them.

        Args:
            batches: batches as a data set yields them, all of one shape.

        Returns:
            the logs of the last step, each the mean over all ranks (so that they are the same
            everywhere and callbacks decide alike).

        Raises:
            UserError: a gradient was not finite, here or (on accelerators) in the call before.
        """
        run = self._run if self.model.run_eagerly else self._traced
        carried = self._updates()
        taken = None if self._carrying is None else self._carrying.take(carried)
        notices = _NO_NOTICES if self._watch is None else self._watch.notices.own()
        arguments = tuple(batches), taken, tf.constant(notices)
        if run is self._traced:
            self._trace_as_keras(*arguments)
        logs, codes, left = run(*arguments)
        if self._watch is not None:
            checked, num_steps = self._checked[len(batches)], len(batches) // self.accumulate
            self._watch.note(codes, checked, num_steps, logs)
        if self._carrying is not None and carried is not None:  # and gradients were finite
            assert left is not None
            self._carrying.keep(carried, left)
        return logs

    def _trace_as_keras(
        self, batches: tuple[Batch, ...], left: CarriedGradients | None, notices: tf.Tensor
    ) -> None:
        """Traces the call with the shapes of the ``element_spec``, if it is known, unless it was.

        Which kernels TensorFlow fuses depends on whether the batch size is known, so the last bits
        do. A function that was traced for open shapes serves batches of any size.
        """
        spec, call = self._element_spec(), (len(batches), left is None)
        if spec is not self._spec:
            self._spec, self._traced_for = spec, set()
        if spec is None or call in self._traced_for:
            return
        self._traced_for.add(call)

        def of(leaf: Any, leaf_spec: Any) -> Any:
            return None if leaf is None else leaf_spec

        specs = tuple(tf.nest.map_structure(of, batch, spec) for batch in batches)
        self._traced.get_concrete_function(specs, left, notices)

    def trace(self, batches: Sequence[Batch]) -> Any:
        """Traces an execution on such batches without running it; returns the FuncGraph."""
        carried = self._updates()
        left = None if carried is None else carried.nothing()
        notices = tf.constant(_NO_NOTICES)
        return self._traced.get_concrete_function(tuple(batches), left, notices).graph

    def _updates(self) -> CarriedUpdates | None:
        """The updates that a call leaves to the next one; None if it leaves none."""
        plan = self.backward.plan
        if self._carrying is None or plan is None or not self._carrying.carries(plan):
            return None
        if self._carried is None:
            self._carried = CarriedUpdates(self.model, self.backward, self._updating, self._sharded)
        return self._carried

    def _run(
        self, batches: tuple[Batch, ...], left: CarriedGradients | None, notices: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, CarriedGradients | None]:
        """Trains on the batches.

        Args:
            batches: the batches of the call.
            left: what the call before has left; None: it leaves nothing, and nor does this one.
            notices: what this rank tells the others.

        Returns:
            the last step's logs, the float32 codes of all ranks (see GradientSums) with the sums
            of the notices behind them, and what is left to the next call.
        """
        self._sums = GradientSums()
        carried = self._carried if left is not None else None
        with uncompiled(self.model):
            if left is not None and carried is not None:
                carried.begin(left)
            logs: dict[str, tf.Tensor] = {}
            steps = len(batches) // self.accumulate
            for step in range(steps):
                if self._compiled is not None:
                    note = partial(self._sums.add, step) if self._sees_gradients else None
                    logs = self._compiled(batches[step], note)
                    continue
                first = step * self.accumulate
                part = batches[first : first + self.accumulate]
                leaving = carried if step == steps - 1 else None
                with scaling_parts(self.model, len(part)) as are_parts:
                    logs = self._update(step, part, 1 if are_parts else len(part), leaving)
            self._checked[len(batches)] = self._sums.checked
            logs, codes = self._of_all_ranks(logs, self._sums.code(), notices)
            return logs, codes, None if carried is None else carried.left()

    def _update(
        self,
        step: int,
        batches: Sequence[Batch],
        divisor: int,
        leaving: CarriedUpdates | None,
    ) -> dict[str, tf.Tensor]:
        """Updates once, with the sum of the batches' gradients divided by ``divisor``.

        Some updates are left to the next call if ``leaving`` says so.
        """
        held: list[Gradient] = []
        arrived: dict[str, Gradient] = {}
        gradients_seen = False

        def hold(_target: Any, _seeds: Any, gradients: Sequence[Gradient], _v: Any) -> list[Any]:
            held[:] = add_gradients(held, gradients)
            return list(gradients)

        def finish(
            target: Sequence[tf.Tensor],
            seeds: Sequence[tf.Tensor],
            gradients: Sequence[Gradient],
            variables: Sequence[Any],
        ) -> list[Gradient]:
            nonlocal gradients_seen
            gradients_seen = True
            self._name_strangers(variables)
            if held:
                total = add_gradients(held, gradients)
                gradients = [None if g is None else g / divisor for g in total]
            names = variable_names(variables)
            gradients = through(self._features, names, gradients)
            if self._verdict is not None:
                self._verdict.look_at(gradients)
            carried = () if leaving is None else leaving.names
            result = self.backward(target, seeds, gradients, variables, carried)
            arrived.update(zip(names, result, strict=True))
            if self._sees_gradients:
                thin = self.backward.exchange.thin  # to read it is faster
                seen = [thin.get(name, g) for name, g in zip(names, gradients, strict=True)]
                self._sums.add(step, names, seen)
            return result

        skipping = None if self._watch is None else self._watch.skipping
        if self._verdict is None and can_be_early(self.model, self.backward.exchange.engine):
            self._verdict = EarlyVerdict(self.model, self.backward.exchange.engine)
        low_rank, verdict = self.backward.exchange.low_rank, skipping or self._verdict
        keeping: AbstractContextManager[None] = contextlib.nullcontext()
        if low_rank is not None and verdict is not None:
            keeping = low_rank.keeping(verdict.if_finite)
        with keeping, contextlib.nullcontext() if skipping is None else skipping.step():
            for batch in batches[:-1]:
                with watch_gradients(hold, self.backward.trained), not_updating(self.model):
                    self._train_step(batch)
            with (
                watch_gradients(finish, self.backward.trained),
                self._updates_of_step(leaving, skipping),
                self._updating(),
                warnings.catch_warnings(),
            ):
                if self.backward.selected is not None:  # Keras takes None for a mistake
                    warnings.filterwarnings("ignore", "Gradients do not exist for variables")
                logs = self._train_step(batches[-1])
        if self._sharded is not None:
            left = () if leaving is None else leaving.names
            steps = self.backward.steps[-1:]  # none if it runs eagerly
            together = [each.weights for step in steps for each in step.exchanges]
            self._sharded.share(arrived.keys() - set(left), arrived, together)
        if skipping is not None and type(self.model).train_step is keras.Model.train_step:
            logs = self.model.get_metrics_result()  # without a step that was left out
        if self.model.trainable_variables and not gradients_seen:
            raise UserError(
                f"{type(self.model).__name__}.train_step computed no gradient of the model's "
                "trainable variables with tf.GradientTape where ooodist could see it, so workers "
                "would drift apart; compute the gradients with a tf.GradientTape in train_step "
                "itself (not in another thread)"
            )
        return logs

    def _updates_of_step(
        self, leaving: CarriedUpdates | None, skipping: Skipping | None
    ) -> AbstractContextManager[None]:
        """A context in which a step's updates are traced."""
        if leaving is not None:
            return leaving.leaving()
        if skipping is not None:  # it updates all weights together, or none
            return contextlib.nullcontext()
        if self._verdict is not None:
            return self._verdict.updating(self._arriving_together)
        return updating_one_by_one(self.model)

    def _arriving_together(self) -> list[list[Any]]:
        """The weights of each exchange of the step that was traced last."""
        weights = self.model.trainable_variables
        known = dict(zip(variable_names(weights), weights, strict=True))
        exchanges = self.backward.steps[-1].exchanges
        groups = dict.fromkeys(each.weights for each in exchanges)  # chunks of one weight
        return [[known[name] for name in group] for group in groups]

    def _train_step(self, batch: Batch) -> dict[str, Any]:
        engine = self.backward.exchange.engine
        with synchronizing(self.model, engine), of_whole_batch(engine):
            logs: dict[str, Any] = self.model.train_step(batch)
            return logs

    def _name_strangers(self, variables: Sequence[Any]) -> None:
        """Warns of variables that are trained but are not part of the model."""
        own = {id(handle_of(variable)) for variable in self.model.variables}
        strangers = [variable.name for variable in variables if id(handle_of(variable)) not in own]
        if strangers and self.backward.exchange.engine.size > 1:
            logger.warning(
                "train_step trains %s, not among the model's variables: their gradients are "
                "averaged, but they are not given rank 0's first values; see to it that they "
                "start alike (ooodist.broadcast)",
                ", ".join(strangers),
            )

    @property
    def _sees_gradients(self) -> bool:
        return self._watch is not None and self._watch.sees_gradients

    def _of_all_ranks(
        self, logs: dict[str, Any], code: tf.Tensor, notices: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """The logs averaged over all ranks, the codes of all and the sums of their notices,
        by one exchange."""
        engine = self.backward.exchange.engine
        if engine.size == 1:
            return logs, tf.concat([code[tf.newaxis], notices], 0)
        if not isinstance(logs, dict):
            logs = {}
        tensors = {name: tf.convert_to_tensor(value) for name, value in logs.items()}
        scalars = sorted(name for name, value in tensors.items() if value.shape.rank == 0)
        values = [tf.cast(tensors[name], tf.float32) for name in scalars]
        codes = code * tf.one_hot(engine.rank, engine.size)
        own = tf.concat([tf.stack([*values, 0.0]), codes, notices], 0)
        total = engine.sum_in_graph(own, f"logs.{len(scalars)}")
        mean = tf.unstack(total[: len(scalars)] / engine.size)
        return {**tensors, **dict(zip(scalars, mean, strict=True))}, total[len(scalars) + 1 :]


def in_executions(execution: Run, *, steps: int, accumulate: int) -> Run:
    """Runs batches as executions of ``steps`` steps each, and the rest one step at a time.

    A shorter execution, or one of other shapes, would be traced only to be used once.
    """
    whole = steps * accumulate

    def run(batches: Sequence[Batch]) -> dict[str, tf.Tensor]:
        logs: dict[str, tf.Tensor] = {}
        while batches:
            first = batches[:whole]
            if len(first) < whole or not _same_shapes(first):
                first = batches[:accumulate]
            logs = execution(first)
            batches = batches[len(first) :]
        return logs

    return run


def _same_shapes(batches: Sequence[Batch]) -> bool:
    shapes = [[getattr(leaf, "shape", None) for leaf in tf.nest.flatten(b)] for b in batches]
    return all(shape == shapes[0] for shape in shapes)


@contextlib.contextmanager
def uncompiled(model: keras.Model) -> Iterator[None]:
    """Disables XLA for the model in this block; XLA drops control edges, and so the order."""
    before = model.jit_compile
    model.jit_compile = False
    try:
        yield
    finally:
        model.jit_compile = before


def add_gradients(first: Sequence[Gradient], second: Sequence[Gradient]) -> list[Gradient]:
    """Sums two lists of gradients, weight by weight; an empty ``first`` counts as zero."""
    if not first:
        return list(second)
    sums: list[Gradient] = []
    for a, b in zip(first, second, strict=True):
        if a is None or b is None:
            sums.append(b if a is None else a)
        else:
            sums.append(tf.convert_to_tensor(a) + tf.convert_to_tensor(b))
    return sums
