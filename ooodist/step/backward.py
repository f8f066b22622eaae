"""Processes the gradients of a step between the tape and the optimizer.

The tape hands over the gradients of a step that is being traced. This module splits the step into
units, imposes the order, exchanges the gradients in that order, and returns their means.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ooodist.compat.tensorflow_graph import capture, handle_of
from ooodist.errors import UserError
from ooodist.graph.digest import model_digest
from ooodist.graph.forward_units import find_forward_units
from ooodist.graph.order import baseline_order, impose_order, movable_layers
from ooodist.graph.units import Gradient, Unit, find_backward_units
from ooodist.planner.data_parallel.orders import first_k
from ooodist.planner.data_parallel.plan import Plan
from ooodist.step.exchange import GradientExchange
from ooodist.step.sending.summed import Exchanged, Summed

logger = logging.getLogger("ooodist")

# An order: its name, a list of unit names, a function from the units to such a list, or a plan
# (order and exchanges).
Order = str | Sequence[str] | Callable[[Sequence[Unit]], Sequence[str]] | Plan
UNITS_AT_A_TIME = 6  # about two layers, since many units are biases and scales that take no time
ORDERS = ("inorder", "first_k")


@dataclass(frozen=True)
class TracedStep:
    """The units, the order and the exchanges of one traced step, for reports, tests and plans.

    Attributes:
        forward, backward: its units, in baseline order.
        order: names of the backward units in the order that was imposed; None if none was.
        exchanges: the exchanges, in the order in which they were issued. The first step of a call
            has those that the call before has left, too; the last lacks those that are left.
    """

    forward: tuple[Unit, ...]
    backward: tuple[Unit, ...]
    order: tuple[str, ...] | None
    exchanges: tuple[Exchanged, ...]


class OrderedBackward:
    """Orders the backward pass of each traced step and exchanges its gradients.

    Args:
        exchange: averages gradients over the ranks.
        order: ``inorder`` (TensorFlow's own order: no edge is added), ``first_k``, a list of unit
            names (of all backward passes, if a step has several), a function that makes one from
            the units in baseline order, or a plan, which also says how to exchange.
        k: for ``first_k``, the number of layers whose dW is deferred.
        selected: names of the weights that are trained (see :func:`variable_names`); None: all.

    Attributes:
        steps: a record of each traced step.
        plan: the plan that is followed; None if there is none.

    Raises:
        UserError: the order has an unknown name, ``k`` comes without ``first_k``, or the plan is
            for another number of workers or another engine.
    """

    def __init__(
        self,
        exchange: GradientExchange,
        order: Order = "inorder",
        k: int = 0,
        selected: Collection[str] | None = None,
    ) -> None:
        if isinstance(order, str) and order not in ORDERS:
            raise UserError(
                f"order is {order!r}; choose one of {', '.join(ORDERS)}, a plan, a list of unit "
                "names, or a function from units to unit names (ooodist.distribute knows more)"
            )
        if k and order != "first_k":
            raise UserError(f"order: k = {k} is for first_k alone, but the order is {order!r}")
        self.exchange = exchange
        self.order = order
        self.k = k
        self.selected = None if selected is None else frozenset(selected)
        self.steps: list[TracedStep] = []
        self.plan: Plan | None = None
        self._warned_eager = False
        self._carried: list[Exchanged] = []  # not in a traced step yet
        if isinstance(order, Plan):
            self.carry_out(order)

    def trained(self, variables: Sequence[Any]) -> list[bool]:
        """Whether each of these variables is trained."""
        names = variable_names(variables)
        return [self.selected is None or name in self.selected for name in names]

    def carry_out(self, plan: Plan) -> None:
        """Uses a plan's order and exchanges for the steps that are traced from now on.

        Raises UserError if the plan is for another number of workers or another engine.
        """
        engine = self.exchange.engine
        if plan.engine and (plan.engine, plan.workers) != (engine.name, engine.size):
            raise UserError(
                f"the plan is for {plan.workers} workers with engine {plan.engine}, but this job "
                f"has {engine.size} with engine {engine.name}; make one for it with "
                "python -m ooodist.plan"
            )
        self.plan = plan
        self.order = "inorder" if plan.order is None else plan.order
        before = self.exchange
        self.exchange = GradientExchange(
            engine,
            plan=plan,
            sum_rows=before.sum_rows,
            feedback=before.feedback,
            rows=before.rows,
            low_rank=before.low_rank,
            slices=before.slices,
        )

    def __call__(
        self,
        target: Sequence[tf.Tensor],
        seeds: Sequence[tf.Tensor],
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        carried: Collection[str] = (),
    ) -> list[Gradient]:
        """Orders a step's backward pass and averages its gradients.

        Args:
            target: the losses that were differentiated.
            seeds: the output gradients that the tape was given, of the losses' shapes.
            gradients: what the tape returned, one for each of ``variables``.
            variables: Keras or TensorFlow variables.
            carried: names of weights whose gradients are left to the next call, not averaged.

        Returns:
            the gradients, averaged over the ranks.

        Raises:
            UserError: the order does not fit this model.
        """
        names = variable_names(variables)
        if tf.executing_eagerly():
            if (self.order != "inorder" or self.plan) and not self._warned_eager:
                logger.warning(
                    "order %s has no effect: the step runs eagerly; trace it with tf.function",
                    self.plan.name if self.plan else self.order,
                )
                self._warned_eager = True
            return self.exchange.mean(gradients, names)[0]

        backward = find_backward_units(seeds, gradients, names)
        self._check_model(backward)
        handles = [capture(handle_of(variable)) for variable in variables]
        forward = find_forward_units(target, handles, names)
        imposed = self._order(backward)
        if imposed is not None:
            impose_order(backward, imposed, units_at_a_time())

        # Gradients are exchanged in the order in which they become ready.
        ready = {name: at for at, name in enumerate(imposed or baseline_order(backward), start=1)}
        ready_at = {weight: ready[unit.name] for unit in backward for weight in unit.variables}
        sequence = sorted(range(len(names)), key=lambda index: ready_at.get(names[index], 0))
        means, exchanges = self.exchange.mean(
            [gradients[index] for index in sequence],
            [names[index] for index in sequence],
            carried,
        )
        issued = (*self._carried, *exchanges)
        self._carried = []
        self.steps.append(
            TracedStep(forward, backward, tuple(imposed) if imposed is not None else None, issued)
        )
        result = list(gradients)
        for index, mean in zip(sequence, means, strict=True):
            result[index] = mean
        return result

    def note_carried(self, sums: Sequence[Summed]) -> None:
        """Notes what the call that is being traced has exchanged first, left by the one before."""
        self._carried = [each.record for each in sums if each.record is not None]

    def _check_model(self, backward: Sequence[Unit]) -> None:
        if self.plan is not None and self.plan.model not in ("", model_digest(backward)):
            raise UserError(
                f"the plan is for another model (digest {self.plan.model}; this one has "
                f"{model_digest(backward)}); make one for it with python -m ooodist.plan"
            )

    def _order(self, units: Sequence[Unit]) -> Sequence[str] | None:
        if self.order == "inorder":
            return None
        if self.order == "first_k":
            return first_k(baseline_order(units), movable_layers(units), self.k)
        if callable(self.order):
            return self.order(units)
        assert not isinstance(self.order, Plan)  # carry_out has taken the order out of it
        if self.plan is not None:
            return self.order
        # A step may have several backward passes (of a GAN, say): each takes its own units.
        known = {unit.name for unit in units}
        own = [name for name in self.order if name in known]
        return own if set(own) == known else self.order  # check_order then says what is wrong


def units_at_a_time() -> int:
    """How many backward units may run at a time where an order is imposed.

    One at a time leaves cores idle at the end of each unit: with two workers on two cores, steps
    took 13 to 18 % longer than without an order. A GPU's stream runs them one by one anyway.
    """
    is_parallel = len(os.sched_getaffinity(0)) > 1 and not tf.config.get_visible_devices("GPU")
    return UNITS_AT_A_TIME if is_parallel else 1


def named_variables(model: Any) -> dict[str, Any]:
    """A model's variables by name, trainable ones first so that they are numbered alone."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    return dict(zip(variable_names(variables), variables, strict=True))


def names_by_id(model: Any) -> dict[int, str]:
    """The names of :func:`named_variables` by the id of the variable.

    They identify a variable on all ranks. Paths do not: Keras gives the same one to the weights of
    two models made by one function, once they are layers of another model.
    """
    return {id(variable): name for name, variable in named_variables(model).items()}


def variable_names(variables: Sequence[Any]) -> list[str]:
    """Unique names: each variable's Keras path or TensorFlow name, numbered if need be."""
    paths = [getattr(v, "path", None) or v.name.partition(":")[0] for v in variables]
    names: list[str] = []
    used = dict.fromkeys(paths, 0)
    for path in paths:
        used[path] += 1
        name = path
        while used[path] > 1 and (name := f"{path}#{used[path]}") in used:  # another one's path
            used[path] += 1
        names.append(name)
    return names
