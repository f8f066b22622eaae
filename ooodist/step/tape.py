"""Intercepts a step's gradients, with a tape of our own or by watching TensorFlow's tape."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from ooodist import engines
from ooodist.compat.attributes import replaced
from ooodist.compat.tensorflow_graph import is_variable
from ooodist.compat.tensorflow_runtime import others_record
from ooodist.graph.units import Gradient
from ooodist.planner.data_parallel.named import BUCKET_BYTES
from ooodist.step.autograph import not_converted
from ooodist.step.backward import Order, OrderedBackward, variable_names
from ooodist.step.exchange import GradientExchange
from ooodist.step.sending.rows import RowGradients

logger = logging.getLogger("ooodist")

Handler = Callable[
    [Sequence[tf.Tensor], Sequence[tf.Tensor], Sequence[Gradient], Sequence[Any]], list[Gradient]
]
Choice = Callable[[Sequence[Any]], Sequence[bool]]  # whether each of these variables is trained
_plain_gradient = tf.GradientTape.gradient


def gradient_with(
    handler: Handler,
    tape: tf.GradientTape,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    trained: Choice | None = None,
    **options: Any,
) -> Any:
    """Calls ``tape.gradient`` and passes the gradients through ``handler``.

    Args:
        handler: gets the losses, their output gradients, the gradients and the variables, all as
            flat lists.
        tape, target, sources, output_gradients, options: as for ``tf.GradientTape.gradient``.
        trained: says which sources are trained; the gradients of the others are None and not
            computed. None: all are trained.

    Returns:
        the handler's gradients in the structure of ``sources``.
    """
    targets = [tf.convert_to_tensor(loss) for loss in tf.nest.flatten(target)]
    if output_gradients is None:
        # The tape's default, made here so that the start of the backward pass is known.
        seeds = [tf.ones_like(loss) for loss in targets]
    else:
        seeds = [tf.identity(seed) for seed in tf.nest.flatten(output_gradients)]
    variables = tf.nest.flatten(sources)
    wanted = [True] * len(variables) if trained is None else trained(variables)
    sources_left = [v for v, is_wanted in zip(variables, wanted, strict=True) if is_wanted]
    found = iter(
        _plain_gradient(tape, targets, sources_left, output_gradients=seeds, **options)
        if sources_left
        else []
    )
    gradients = [next(found) if is_wanted else None for is_wanted in wanted]
    return tf.nest.pack_sequence_as(sources, handler(targets, seeds, gradients, variables))


class DistributedGradientTape:
    """A gradient tape whose gradients are averaged over all ranks and computed in a chosen order.

    Used like Horovod's, around a tape or in its place::

        with tf.GradientTape() as tape:
            loss = loss_of(model(x, training=True), y)
        tape = ooodist.DistributedGradientTape(tape, order="first_k", k=4)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    Call it in a ``tf.function`` (without ``jit_compile``: XLA drops the order). If several steps
    are traced into one function, the exchange of one overlaps the forward pass of the next.
    Weights must be equal on all ranks to begin with: call :func:`ooodist.broadcast` once. A
    ``BatchNormalization(synchronized=True)`` uses the moments of this rank's batch; only ``fit``
    of :func:`ooodist.distribute` synchronizes them.

    Args:
        tape: a tape that has recorded the loss; None to record with this object.
        order: as for :func:`ooodist.distribute`, except those that are found from measured costs.
        k: for ``first_k``, the number of layers whose dW run last.
        credit: exchanges in flight; None for the engine's default.
        bucket_bytes: small gradients share a bucket up to this size in bytes.
        persistent: see tf.GradientTape; used only if ``tape`` is None.
        watch_accessed_variables: the same.

    Raises:
        UserError: ``ooodist.init()`` was not called, or an argument is impossible.
    """

    @not_converted
    def __init__(
        self,
        tape: tf.GradientTape | None = None,
        *,
        order: Order = "inorder",
        k: int = 0,
        credit: int | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        persistent: bool = False,
        watch_accessed_variables: bool = True,
    ) -> None:
        self._tape = tape or tf.GradientTape(persistent, watch_accessed_variables)
        exchange = _shared_exchange(credit, bucket_bytes)
        self._backward = OrderedBackward(exchange, order, k)

    @not_converted
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The gradients of ``target``, averaged over all ranks; see tf.GradientTape."""
        return gradient_with(
            self._backward,
            self._tape,
            target,
            sources,
            output_gradients,
            unconnected_gradients=unconnected_gradients,
        )

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:  # watch, stop_recording, reset, ...
        return getattr(self._tape, name)


# Tapes come and go with every traced step; the exchange's window and names must outlive them.
_exchanges: dict[tuple[int, int | None, int], GradientExchange] = {}


def _shared_exchange(credit: int | None, bucket_bytes: int) -> GradientExchange:
    engine = engines.current()
    key = (id(engine), credit, bucket_bytes)
    if key not in _exchanges:
        _exchanges[key] = GradientExchange(
            engine,
            credit=credit,
            bucket_bytes=bucket_bytes,
            sum_rows=not engine.kind.is_alone,  # alone, the numbers are those of the plain tape
            rows=RowGradients(engine, "a tape does not know the shapes of all batches"),
        )
    return _exchanges[key]


def watch_gradients(
    handler: Handler, trained: Choice | None = None
) -> AbstractContextManager[None]:
    """Passes the gradients that any ``tf.GradientTape`` computes in a block through a handler.

    So a model's ``train_step``, Keras's or a custom one, needs no change. Not intercepted are
    other threads, gradients with respect to tensors (a gradient penalty, say), and those that
    belong to another gradient: what a tape computes while another one computes its own
    (``tf.recompute_grad``, a custom gradient with a tape inside), or records.

    Args:
        handler, trained: see :func:`gradient_with`; of the sources, both get only the variables.
    """
    thread = threading.get_ident()
    is_computing = False

    def gradient(
        tape: tf.GradientTape,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        flat = tf.nest.flatten(sources)
        variables = [index for index, source in enumerate(flat) if is_variable(source)]
        options = {"unconnected_gradients": unconnected_gradients}
        nonlocal is_computing
        if threading.get_ident() != thread or not variables or is_computing:
            return _plain_gradient(tape, target, sources, output_gradients, **options)
        if others_record(tape):
            logger.warning(
                "train_step computes gradients of %s while another tape records: they stay each "
                "worker's own; if they are to update weights, compute them outside of that tape",
                ", ".join(variable_names([flat[index] for index in variables])[:3]),
            )
            return _plain_gradient(tape, target, sources, output_gradients, **options)

        def handle_variables(
            targets: Sequence[tf.Tensor],
            seeds: Sequence[tf.Tensor],
            gradients: Sequence[Gradient],
            given: Sequence[Any],
        ) -> list[Gradient]:
            own = [gradients[index] for index in variables]
            result = list(gradients)
            handled = handler(targets, seeds, own, [given[index] for index in variables])
            for index, value in zip(variables, handled, strict=True):
                result[index] = value
            return result

        def choose(given: Sequence[Any]) -> Sequence[bool]:
            chosen = [True] * len(given)
            if trained is not None:
                own = trained([given[index] for index in variables])
                for index, is_wanted in zip(variables, own, strict=True):
                    chosen[index] = is_wanted
            return chosen

        is_computing = True
        try:
            return gradient_with(
                handle_variables, tape, target, sources, output_gradients, choose, **options
            )
        finally:
            is_computing = False

    return replaced(tf.GradientTape, gradient=gradient)
