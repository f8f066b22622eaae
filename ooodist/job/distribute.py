"""``ooodist.distribute``: a Keras model that trains on all ranks, in a chosen order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import keras

from ooodist.errors import UserError
from ooodist.job.compose import compose
from ooodist.planner.data_parallel.plan import RankSetting, WireSetting
from ooodist.settings.elastic import ElasticConfig, read_elastic
from ooodist.settings.sections import ExchangeConfig, PlanningConfig
from ooodist.settings.training import JitCompile, OnNan, Training
from ooodist.step.backward import Order
from ooodist.step.feature import Feature


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
    low_rank: RankSetting = None,
    low_rank_after: float = 0,
    rows: Literal["auto", "never"] = "auto",
    planning: PlanningConfig | None = None,
    elastic: ElasticConfig | Mapping[str, Any] | None = None,
    shard_optimizer: bool = False,
    sum_rows: bool | None = None,
    features: Sequence[Feature] = (),
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
        low_rank: gradients of matrices and convolutions travel as two thin matrices of so many
            columns (1, 2, 4, ...), where that is less than half, and what is lost is added to the
            next one's (PowerSGD, :mod:`ooodist.step.sending.low_rank`). Other numbers come out. For
            networks on which 16 bits are still far too many; 4 is a good start. ``auto``, with the
            order ``planned``: only gradients whose exchange could not be hidden, with as many
            columns as there is time for.
        low_rank_after: the first steps are those of a training without ``low_rank``: this number
            (500), to the end of a call, or this share of all steps (0.1). 0: none are.
        rows: ``auto``: the gradient of an embedding travels as the rows that a batch uses, if that
            is less to send than the table, and ``fit`` knows that all batches have one shape (as
            with arrays, or ``batch(n, drop_remainder=True)``); ``never``: always as the table, as
            with BytePS, ``accumulate`` or ``elastic``. ooodist logs which. With two workers the
            numbers are the same, bit for bit; with more, sums may be rounded in another order.
        planning: limits of plans made here, and where profiles are kept.
        elastic: train only the weights that matter most, as ``{"rho": 0.5, "renew": "200 steps"}``
            (see :class:`ooodist.settings.elastic.ElasticConfig`); None for all.
        shard_optimizer: each worker keeps the optimizer's state for a slice of each weight, and
            updates it for all (ZeRO stage 1): 1/n of Adam's moments with n workers. With two, the
            numbers are the same; with more, sums may be rounded in another order. After ``fit``,
            and while a callback saves, rank 0 has all of the state; at other times, read it in a
            block ``with ooodist.whole(model):``.
        sum_rows: also on one process, pass each row of an embedding to the optimizer once, so that
            any number of workers trains alike; several workers always do. None: yes, except with
            the engine ``local``, whose numbers are those of plain Keras.
        features: what else is done with the gradients of each step, in this order (see
            :class:`ooodist.Feature`).
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
    if isinstance(features, Feature) or not all(isinstance(each, Feature) for each in features):
        raise UserError(f"features is {features!r}; it must be a list of ooodist.Feature objects")
    training = Training(
        order=order,
        k=k,
        steps_per_execution=steps_per_execution,
        accumulate=accumulate,
        exchange=ExchangeConfig(
            credit=credit,
            bucket_bytes=bucket_bytes,
            wire=wire,
            error_feedback=error_feedback,
            low_rank=low_rank,
            low_rank_after=low_rank_after,
            rows=rows,
        ),
        planning=planning or PlanningConfig(),
        elastic=read_elastic(elastic),
        shard_optimizer=shard_optimizer,
        features=tuple(features),
        on_nan=on_nan,
        jit_compile=jit_compile,
        sum_rows=sum_rows,
    )
    return compose(model, training)
