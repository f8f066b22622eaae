"""Exchanges that outlive their call: what a call leaves, the next one exchanges first.

A call ends when all is computed, so its last exchanges have nothing to hide behind. Those that a
plan carries are left to the next call instead, where only the layers that need them wait for them::

    call t     F1 F2 F3 | X3 X2 X1 W1 W2 W3 |       call t + 1   F1 F2 F3 | ...
    exchange                       |- 1 -||- 2 -|                |- 3 -|
                                             (F3 waits for it, F1 and F2 do not)

Of a large gradient, some chunks may be carried and others not. Then the call leaves the sums of the
others, too, and the weight is updated in the next call, when the last chunk is there.

The update is that of step t: it sees the count of steps and the learning rate of then. So the
numbers are those of calls that leave nothing. Between two calls the weights lack these updates;
before anybody looks at them, all ranks apply what is left (:meth:`Carrying.flush`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ooodist.compat.attributes import replaced
from ooodist.compat.keras_optimizer import (
    as_at_step,
    averaging_only,
    is_function_of_steps,
    rate_or_schedule,
    uncounted,
)
from ooodist.compat.tensorflow_graph import handle_of
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.planner.data_parallel.plan import Plan
from ooodist.step.backward import OrderedBackward, variable_names
from ooodist.step.optimizer import apply, in_cross_replica_context, replaced_apply
from ooodist.step.sending.summed import Summed
from ooodist.step.sharding.sharded import ShardedOptimizer

logger = logging.getLogger("ooodist")

# Optimizers that update each weight from its own gradient and state alone. Not all versions of
# Keras have each of them.
WEIGHT_BY_WEIGHT = tuple(
    getattr(keras.optimizers, name)
    for name in (
        *("SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "Adafactor"),
        *("RMSprop", "Lion", "Lamb", "Ftrl", "Muon"),
    )
    if hasattr(keras.optimizers, name)
)


class CarriedGradients(NamedTuple):
    """What a call leaves to the next.

    Attributes:
        gradients: this rank's own gradients of the carried weights, dense, as they will be sent.
        count: the optimizer's number of steps before the step that they belong to, int64.
        rate: its learning rate in that step; None if it follows from the count.
        is_there: whether there is anything; if not, gradients and sums are zeros.
        arrived: of these gradients, the chunks that the call itself has exchanged: sums over all
            ranks, flat.
    """

    gradients: tuple[tf.Tensor, ...]
    count: tf.Tensor
    rate: tf.Tensor | None
    is_there: tf.Tensor
    arrived: tuple[tf.Tensor, ...] = ()


def why_not_carried(model: keras.Model) -> str | None:
    """Why no exchange of a compiled model can be left to the next call; None if one can."""
    optimizer = model.optimizer
    if model.run_eagerly:
        return f"model {model.name} runs eagerly"
    if type(model).train_step is not keras.Model.train_step:
        return f"{type(model).__name__} has a train_step of its own, which may use them at once"
    if type(optimizer) not in WEIGHT_BY_WEIGHT:
        return (
            f"the optimizer {type(optimizer).__name__} is not known to update each weight from its "
            "own gradient alone"
        )
    if optimizer.global_clipnorm:
        return f"global_clipnorm = {optimizer.global_clipnorm:g} of the optimizer needs all of them"
    if optimizer.gradient_accumulation_steps:
        return (
            f"gradient_accumulation_steps = {optimizer.gradient_accumulation_steps} of the "
            "optimizer accumulates them"
        )
    is_fixed = isinstance(rate_or_schedule(optimizer), keras.Variable)
    if not is_fixed and not is_function_of_steps(optimizer):
        return "the optimizer's learning_rate is a function of more than the number of steps"
    return None


class CarriedUpdates:
    """The updates that the calls of one launch leave to each other.

    Args:
        model: compiled and built, its optimizer too.
        backward: carries out a plan that says what is carried.
        updating: makes a context that is entered around updates while they are traced.
        sharded: gives all ranks what each updates; None: each updates all weights.

    Attributes:
        names: names of the weights that are carried, in whole or in part.

    Raises:
        UserError: the plan carries what is not trained.
    """

    def __init__(
        self,
        model: keras.Model,
        backward: OrderedBackward,
        updating: Callable[[], AbstractContextManager[None]],
        sharded: ShardedOptimizer | None = None,
    ) -> None:
        assert backward.plan is not None
        weights = model.trainable_variables
        known = dict(zip(variable_names(weights), weights, strict=True))
        self.names = backward.plan.carried
        if not known.keys() >= set(self.names):
            raise UserError(
                f"the plan carries {sorted(set(self.names) - known.keys())}, which the model does "
                "not train; make a plan for this model with python -m ooodist.plan"
            )
        self._optimizer = model.optimizer
        # Variables as the optimizer's own: a graph that reads them is rounded like a call's that
        # leaves nothing. TensorFlow rearranges products, depending on who else uses a factor.
        self._count_then = uncounted(model.optimizer)
        self._rate_then = None
        if not is_function_of_steps(model.optimizer):
            self._rate_then = tf.Variable(model.optimizer.learning_rate, trainable=False)
        self._backward = backward
        self._updating = updating
        self._sharded = sharded
        self._weights = {name: known[name] for name in self.names}
        # A gradient has the shape and dtype of its weight.
        self._gradients = {
            name: tf.TensorSpec(weight.shape, weight.dtype) for name, weight in known.items()
        }
        self._sizes = {
            name: like.shape.num_elements() * self._sent_dtype(name).size
            for name, like in self._gradients.items()
        }
        # What arrives together is updated together.
        self._groups = list(
            dict.fromkeys(
                exchange.weights
                for exchange in backward.plan.exchanges
                if exchange.weights[0] in self._weights
            )
        )
        self._early = [  # chunks of these weights that the call itself exchanges
            exchange
            for exchange in backward.plan.exchanges
            if exchange.weights[0] in self._weights and not exchange.carried
        ]
        self._left: CarriedGradients | None = None  # of the call that is being traced
        self._apply_alone = tf.function(self._apply_now, autograph=False)

    def nothing(self) -> CarriedGradients:
        """What stands for nothing: after all updates were applied."""
        exchange = self._backward.exchange
        zeros = {
            name: tf.zeros(weight.shape, self._sent_dtype(name))
            for name, weight in self._weights.items()
        }
        return CarriedGradients(
            tuple(zeros.values()),
            tf.zeros([], tf.int64),
            self._rate(),
            tf.constant(value=False),
            tuple(exchange.nothing_of(each, zeros[each.weights[0]]) for each in self._early),
        )

    def apply(self, left: CarriedGradients) -> None:
        """Exchanges and applies what a call has left; all ranks call it."""
        self._apply_alone(left)

    def begin(self, left: CarriedGradients) -> None:
        """Exchanges and applies what the call before has left, at the start of a traced call."""
        self._backward.note_carried(self._exchange_and_apply(left, left.is_there))

    def leaving(self) -> AbstractContextManager[None]:
        """Leaves the carried updates of the step that is traced in a block to the next call."""

        def apply_to_others(plain: Any, gradients: Any, variables: Any) -> None:
            optimizer = self._optimizer
            pairs = list(zip(gradients, variables, strict=True))
            carried = {id(handle_of(weight)) for weight in self._weights.values()}
            own = {id(handle_of(v)): g for g, v in pairs if id(handle_of(v)) in carried}
            others = [(g, v) for g, v in pairs if id(handle_of(v)) not in carried]
            self._left = CarriedGradients(
                tuple(own[id(handle_of(weight))] for weight in self._weights.values()),
                tf.identity(optimizer.iterations),
                self._rate(),
                tf.constant(value=True),
                self._arrived(),
            )
            if all(gradient is None for gradient, _ in others):
                optimizer.iterations.assign_add(1)  # Keras refuses to update nothing
                return
            with averaging_only(optimizer, [v for _, v in others]):
                in_cross_replica_context(plain, [g for g, _ in others], [v for _, v in others])

        return replaced_apply([self._optimizer], apply_to_others)

    def left(self) -> CarriedGradients:
        """What the call that was traced just now leaves."""
        assert self._left is not None
        left, self._left = self._left, None
        return left

    def _apply_now(self, left: CarriedGradients) -> tf.Tensor:
        self._exchange_and_apply(left)
        # TensorFlow optimizes a graph without a result less, and then rounds in other places.
        return left.count + 1

    def _arrived(self) -> tuple[tf.Tensor, ...]:
        """What the step that is traced has summed of the carried weights."""
        sums = {each.name: each.total for each in self._backward.steps[-1].exchanges}
        return tuple(sums[exchange.name] for exchange in self._early)

    def _sent_dtype(self, name: str) -> tf.DType:
        return self._backward.exchange.sent_dtype(name, self._gradients[name].dtype)

    def _rate(self) -> tf.Tensor | None:
        if self._rate_then is None:
            return None
        return tf.identity(self._optimizer.learning_rate)

    def _exchange_and_apply(
        self, left: CarriedGradients, if_there: tf.Tensor | None = None
    ) -> Sequence[Summed]:
        """Exchanges what is left, and applies it if that is so; None: unconditionally."""
        self._count_then.assign(left.count)
        if self._rate_then is not None:
            self._rate_then.assign(left.rate)
        gradients = dict(zip(self.names, left.gradients, strict=True))
        exchange = self._backward.exchange
        early = [
            Summed(each, total, None, exchange.scatters(each))
            for each, total in zip(self._early, left.arrived, strict=True)
        ]
        sums = [*early, *self._backward.exchange.sums_of_carried(gradients, self._sizes)]
        for group in self._groups:
            own = [each for each in sums if each.exchange.weights == group]
            update = functools.partial(self._update, group, own)
            if if_there is None:
                update()
            else:
                tf.cond(if_there, update, lambda: None)
        if self._sharded is not None:
            totals = {name: each.total for each in sums for name in each.exchange.weights}
            self._sharded.share(self.names, totals, self._groups)
        return sums

    def _update(self, group: Sequence[str], sums: Sequence[Summed]) -> None:
        weights = [self._weights[name] for name in group]
        with (
            as_at_step(self._optimizer, self._count_then, self._rate_then),
            averaging_only(self._optimizer, weights),
            self._updating(),
        ):
            means = self._backward.exchange.means(sums, self._gradients)
            apply(self._optimizer, [means[name] for name in group], weights)


class Carrying:
    """What the last call of a model has left to the next, whichever launch that is.

    Launches of one model share this object, and so take turns: what one has left is applied before
    another begins.

    Args:
        engine: connects the ranks.

    Attributes:
        is_wanted: whether calls may leave anything now.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.is_wanted = True
        self._why_not = ""  # to be said once, if a plan carries anything
        self._held: tuple[CarriedUpdates, CarriedGradients] | None = None
        self._abandoned: tuple[CarriedUpdates, CarriedGradients] | None = None

    def carries(self, plan: Plan) -> bool:
        """Whether calls with this plan may leave updates to each other now."""
        if plan.carried and not self.is_wanted and self._why_not:
            logger.warning(
                "plan %s carries the exchanges of %d weights into the next call, but %s",
                plan.name,
                len(plan.carried),
                self._why_not,
            )
            self._why_not = ""
        return self.is_wanted and bool(plan.carried)

    def none(self, why: str = "") -> AbstractContextManager[None]:
        """Makes calls in a block end with all their updates, and logs why if that matters."""
        return replaced(self, is_wanted=False, _why_not=why)

    def take(self, updates: CarriedUpdates | None) -> CarriedGradients | None:
        """Takes what a call begins with; applies what another execution has left.

        Args:
            updates: those of the launch; None: the call begins, and ends, with complete weights.
        """
        self._abandoned = None
        if self._held is not None and self._held[0] is updates:
            (_, left), self._held = self._held, None
            return left
        self.flush()
        return None if updates is None else updates.nothing()

    def keep(self, updates: CarriedUpdates, left: CarriedGradients) -> None:
        """Keeps what a call has left."""
        self._held = updates, left

    def flush(self) -> None:
        """Exchanges and applies what the last call has left, if anything; all ranks call it."""
        if self._held is not None:
            (updates, left), self._held = self._held, None
            updates.apply(left)

    def abandon(self) -> None:
        """Leaves it to the user whether what is left is applied, after an exception.

        The exception may be of this rank alone, so nothing can be exchanged now. And the user may
        give the weights other values, to which these updates do not belong.
        """
        if self._held is None:
            return
        self._abandoned, self._held = self._held, None
        logger.warning(
            "fit ended early: the last step's updates of %d weights, whose exchanges the plan "
            "carries into the next call, are not applied; ooodist.flush(model) on all ranks "
            "applies them, and the next fit begins without them",
            len(self._abandoned[0].names),
        )

    def flush_also_abandoned(self) -> None:
        """As :meth:`flush`, also after an exception.

        Raises:
            UserError: not all ranks have the same to apply; on all ranks.
        """
        self._held, self._abandoned = self._held or self._abandoned, None
        own = "nothing"
        if self._held is not None:
            updates, left = self._held
            own = f"step {int(left.count)} of {', '.join(updates.names)}"
        self._engine.check_equal("what ooodist.flush applies", own)
        self.flush()
