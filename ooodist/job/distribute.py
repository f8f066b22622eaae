"""``ooodist.distribute``: a Keras model that trains on all ranks, in a chosen order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

import keras

from ooodist import engines
from ooodist.config.elastic import ElasticConfig, check_order_is_found, read_elastic
from ooodist.config.sections import (
    MOST_STEPS_PER_EXECUTION,
    PlanningConfig,
    check_feedback,
    check_wire_is_of_order,
)
from ooodist.data_parallel.compiled_strategy import CompiledDataParallel
from ooodist.data_parallel.live_strategy import LiveDataParallel
from ooodist.data_parallel.planning import FROM_COSTS
from ooodist.data_parallel.strategy import DataParallel
from ooodist.data_parallel.xla import JitCompile
from ooodist.errors import UserError
from ooodist.planner.data_parallel.named import BUCKET_BYTES
from ooodist.planner.data_parallel.plan import Plan, WireSetting
from ooodist.step.backward import ORDERS, Order, OrderedBackward
from ooodist.step.exchange import GradientExchange
from ooodist.step.finiteness.skipping import OnNan, check_on_nan
from ooodist.step.optimizer import loss_scale
from ooodist.step.sending.rows import RowGradients
from ooodist.step.sending.wire import ErrorFeedback
from ooodist.trainer.fit import DistributedFit
from ooodist.trainer.strategy import Strategy

logger = logging.getLogger("ooodist")


def distribute(
    model: keras.Model,
    *,
    order: Order = "inorder",
    k: int | None = None,
    steps_per_execution: int | None = None,
    accumulate: int = 1,
    credit: int | None = None,
    bucket_bytes: int | None = None,
    wire: WireSetting = "float32",
    error_feedback: bool = True,
    rows: Literal["auto", "never"] = "auto",
    planning: PlanningConfig | None = None,
    elastic: ElasticConfig | Mapping[str, Any] | None = None,
    sum_rows: bool | None = None,
    on_nan: OnNan = "stop",
    jit_compile: JitCompile = None,
) -> keras.Model:
    """Makes ``model.fit`` and ``model.evaluate`` work on all ranks together.

    The computation is that of one process on the concatenated batches: gradients are averaged,
    whatever the optimizer, and clipping, decay and averages act on the mean. ``batch_size`` is per
    worker. Arrays are sharded over the ranks (pass the same arrays everywhere); a data set or
    generator is used as it is on each rank, so give each rank its own part
    (``ooodist.shard(dataset)``).

    Batch-norm statistics are each rank's own while training and are averaged over the ranks at the
    end of each epoch and before an evaluation; with ``synchronized=True`` they, and the moments of
    each batch, are those of all ranks. Callbacks run on every rank and see the same logs; those
    that write files or report (of Keras, Weights & Biases, MLflow and others), and your own with
    the attribute ``ooodist_rank_0_only = True``, run only on rank 0. If not all ranks were
    given the same callbacks, rank 0's learning rate and weights count at the end of each epoch.
    ``evaluate`` begins with rank 0's weights, as ``fit`` does. A callback of your own that stops
    the training in the middle of an epoch must decide alike on all ranks. One that runs after each
    batch may look at the weights, and keeps plans from carrying exchanges into the next call,
    unless it has the attribute ``ooodist_reads_no_weights = True``.

    A Keras loss over masked tokens is divided by the number of tokens of all workers, and one with
    ``reduction="sum"`` is the sum over all workers. A loss of your own must be a mean over samples;
    so must one with ``reduction="mean_with_sample_weight"``, which each worker divides by its own
    weights.

    Two things differ from Keras on one process. An embedding's gradient has each row once, as the
    sum of its uses, whereas Keras passes the uses to the optimizer one by one, and Adam, RMSprop
    and clipping square each separately (see ``sum_rows``). And ``tf.random`` (not ``keras.random``)
    draws other numbers with another ``steps_per_execution``.

    Training ends with a UserError when a gradient or a weight is no longer finite (see ``on_nan``),
    except where the optimizer scales the loss and skips such steps.

    Args:
        model: a Keras model; compile it before or after.
        order: ``inorder`` (as TensorFlow would), ``first_k``, ``priority`` (exchanges by the need
            of the next forward pass), ``planned`` (whatever turns out to be the fastest while the
            model trains; it begins with ``inorder``), a plan, a list of unit names, or a function
            from the backward units to such a list. If a process has several cores, a unit waits
            for all before it except the last few, so that cores are not idle at the end of each.
        k: for ``first_k``, the number of layers whose dW run last; None for the best k.
        steps_per_execution: training steps traced into one function. The exchange of one overlaps
            the forward pass of the next; tracing takes that many times as long. None for the plan's
            choice, or 1 without a plan.
        accumulate: batches per update and exchange.
        credit: exchanges in flight; None for the engine's default. A plan has its own.
        bucket_bytes: small gradients share a bucket up to this size in bytes; None for 1 MiB.
            A plan has its own.
        wire: ``float32``: gradients travel as they are; ``float16`` or ``bfloat16``: in this dtype;
            ``planned``, with that order: in float16 if their exchange could not be hidden. Half as
            many bytes take half the time, and other numbers come out
            (:mod:`ooodist.step.sending.wire`). A plan has its own.
        error_feedback: with a wire of 16 bits, the rounding error of a gradient is added to the
            next one.
        rows: ``auto``: the gradient of an embedding travels as the rows that a batch uses, if that
            is less to send than the table, and ``fit`` knows that all batches have one shape (as
            with arrays, or ``batch(n, drop_remainder=True)``); ``never``: always as the table, as
            with BytePS, ``accumulate`` or ``elastic``. ooodist logs which. With two workers the
            numbers are the same, bit for bit; with more, sums may be rounded in another order.
        planning: limits of plans made here, and where profiles are kept.
        elastic: train only the weights that matter most, as ``{"rho": 0.5, "renew": "200 steps"}``
            (see :class:`ooodist.config.elastic.ElasticConfig`); None for all.
        sum_rows: also on one process, pass each row of an embedding to the optimizer once, so that
            any number of workers trains alike; several workers always do. None: yes, except with
            the engine ``local``, whose numbers are those of plain Keras.
        on_nan: what happens if a gradient is not finite. ``stop``: the training ends. ``skip``: all
            ranks leave the step out, which changes neither weights nor optimizer state, statistics
            or metrics, and 100 such steps in a row end the training; no weight is updated before
            all gradients of a step are there. ``ignore``: no check.
        jit_compile: whether XLA compiles the steps, which then have no order. ``auto``: compiled
            steps and others are tried in turns once that takes little of the training's time, and
            the faster ones stay. None: as given to ``compile``; on accelerators, Keras's own
            ``auto`` counts as ``auto`` here. With ``planned`` they are tried together with plans;
            not with another order, ``accumulate``, ``elastic`` or ``on_nan="skip"``. XLA rounds
            differently, so the last bits differ, and dropout of XLA draws other numbers.

    Returns:
        the same model.

    Raises:
        UserError: ``ooodist.init()`` was not called, or an argument is impossible.
    """
    for name, value in (("steps_per_execution", steps_per_execution), ("accumulate", accumulate)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UserError(f"{name} is {value!r}; it must be a whole number of at least 1")
    if (steps_per_execution or 1) > MOST_STEPS_PER_EXECUTION:
        raise UserError(
            f"steps_per_execution is {steps_per_execution}; it must be "
            f"{MOST_STEPS_PER_EXECUTION} at most, as each of them is traced"
        )
    if rows not in ("auto", "never"):
        raise UserError(f"rows is {rows!r}; it must be auto or never")
    engine = engines.current()
    if sum_rows is False and engine.size > 1:
        raise UserError(
            f"sum_rows is False, but {engine.size} workers add up their rows; leave it out"
        )
    if isinstance(order, str) and order not in (*ORDERS, *FROM_COSTS):
        names = ", ".join(dict.fromkeys((*ORDERS, *FROM_COSTS)))
        raise UserError(
            f"order is {order!r}; it must be one of {names}, a plan, a list of unit names, or a "
            "function from units to unit names"
        )
    to_find = _to_find(order, k)
    if (to_find or isinstance(order, Plan)) and (credit, bucket_bytes) != (None, None):
        raise UserError(
            f"credit is {credit} and bucket_bytes is {bucket_bytes}, but the order is a plan, "
            "which has its own; leave them out"
        )
    if isinstance(order, Plan) and steps_per_execution not in (None, order.steps_per_execution):
        raise UserError(
            f"steps_per_execution is {steps_per_execution}, but the plan has "
            f"{order.steps_per_execution}; leave it out"
        )
    if isinstance(order, Plan):
        if wire != "float32":
            raise UserError(
                f"wire is {wire}, but the order is a plan, which has its own; leave it out"
            )
        wire = order.wire or wire
    if wire not in get_args(WireSetting):
        raise UserError(f"wire is {wire!r}; it must be one of {', '.join(get_args(WireSetting))}")
    check_wire_is_of_order(wire, order)
    check_on_nan(on_nan, wire=wire, is_elastic=elastic is not None)
    if on_nan == "skip" and engine.size > 1:
        logger.info(
            "on_nan skip: weights are updated when all gradients of a step are there, so the next "
            "forward pass does not overlap their exchange"
        )
    check_feedback(wire, error_feedback=error_feedback)
    is_narrow = wire != "float32"
    if is_narrow:
        logger.info(
            "wire %s: %s",
            wire,
            "there is one worker, so nothing travels"
            if engine.size == 1
            else f"what a gradient loses is {'added to the next' if error_feedback else 'lost'}",
        )
    exchange = GradientExchange(
        engine,
        credit=credit,
        bucket_bytes=BUCKET_BYTES if bucket_bytes is None else bucket_bytes,
        sum_rows=engine.name != "local" if sum_rows is None else sum_rows,
        wire=wire if is_narrow and wire != "planned" else None,
        feedback=ErrorFeedback(lambda: loss_scale(model)) if is_narrow and error_feedback else None,
        rows=RowGradients(engine, "" if rows == "auto" else "rows is never"),
    )
    backward = OrderedBackward(exchange, "inorder" if to_find else order, k or 0)
    planning = planning or PlanningConfig()
    config = read_elastic(elastic)
    if jit_compile not in (None, True, False, "auto"):
        raise UserError(f"jit_compile is {jit_compile!r}; it must be True, False, auto or None")
    is_live = order == "planned" and planning.is_live and engine.size > 1 and config is None
    is_planned = is_live and jit_compile is not True  # what is compiled is tried beside plans
    asked_for = {
        f"order is {getattr(order, '__qualname__', order)}": order != "inorder" and not is_planned,
        f"accumulate is {accumulate}": accumulate > 1,
        f"on_nan is {on_nan}": on_nan == "skip",
        "elastic trains a selection": config is not None,
    }
    against = [what for what, is_asked_for in asked_for.items() if is_asked_for]
    if jit_compile and against:
        raise UserError(
            f"jit_compile is {jit_compile}, but {' and '.join(against)}, which a step that XLA "
            "compiles cannot have; leave one out"
        )
    kind: Callable[..., DataParallel] = DataParallel
    if is_live:
        kind = partial(LiveDataParallel, setting=False if against else jit_compile)
    elif not against:
        kind = partial(CompiledDataParallel, setting=jit_compile)
    inner = kind(
        *(model, engine, backward, steps_per_execution, accumulate),
        *(to_find, planning, wire, on_nan),
    )
    strategy: Strategy = inner
    if config is not None:
        check_order_is_found(order, k)
        from ooodist.elastic.data_parallel import SelectiveDataParallel  # imports SciPy
        from ooodist.elastic.strategy import Elastic

        strategy = Elastic(SelectiveDataParallel(inner, config), config)
    DistributedFit(strategy)
    return model


def _to_find(order: Order, k: int | None) -> str | None:
    """Returns the name of an order that is found from measured costs; None for others."""
    if not isinstance(order, str) or order not in FROM_COSTS or (order == "first_k" and k):
        return None
    return None if order == "first_k" and k == 0 else order
