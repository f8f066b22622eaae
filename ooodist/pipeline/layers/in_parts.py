"""Measures the layers of a model in parts, one on each rank, so that none needs the whole model.

::

    layers        a b c d | e f | g h i        about equal by bytes of weights
    rank 0        a b c d |     |
    rank 1                | e f |
    rank 2                |     | g h i

    rank 0        trace | time |      |        ranks of one host take turns with what is timed,
    rank 1        trace |      | time |        as they share its cores; those of other hosts,
    rank 2        trace |      |      | time   and GPUs, do not wait

What a layer saves is known from a trace of the whole model, which takes no memory for weights.

A small model is not divided: rank 0 measures its layers, and rank 1 how long one process would take
for a whole batch.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ooodist.compat.keras_deferred import has_value, standing_in
from ooodist.compat.tensorflow_graph import handle_of
from ooodist.engines.base import Engine
from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.layers.attribution import saved_by_layer
from ooodist.pipeline.layers.measure import (
    CallSeconds,
    Saved,
    WeightBytes,
    layer_costs,
    measure_layers,
    seconds_of_calls,
    weight_bytes_by_call,
)
from ooodist.pipeline.layers.out_of_memory import explaining_lack_of_memory
from ooodist.pipeline.layers.part import Part, part_of
from ooodist.pipeline.stages import Call, calls_of, sent_specs, split
from ooodist.planner.pipeline.layer_costs import LayerCost
from ooodist.planner.pipeline.partition import smallest_parts
from ooodist.profiler.compute import undisturbed
from ooodist.profiler.state import preserved
from ooodist.profiler.step import StepToMeasure, trace_step
from ooodist.step.optimizer import without_scaling
from ooodist.step.update_order import one_after_the_other

PART_BYTES = 512 << 20  # less than a rank's share of a model that needs a pipeline
SMALL_BYTES = 64 << 20  # of weights, or of activations, that any rank may hold for a moment
ALONE_STEPS = 6


def measure_in_parts(
    model: keras.Model, batch: Any, microbatches: int, engine: Engine, parts: int, *, steps: int
) -> tuple[LayerCost, ...]:
    """The costs of a model's calls on rank 0, and nothing on the others; all call it.

    Each of the first ranks measures a part of the calls, or several, one after the other, where
    one would hold more than PART_BYTES. The model stays as it is. Variables that
    have no value have one only while this rank measures them.

    Args:
        model: compiled, functional or sequential.
        batch: as its data set yields it.
        microbatches: number of micro-batches into which it is split.
        engine: the engine of the job.
        parts: number of ranks that measure; as many as the model is to be divided among.
        steps: steps that are recorded; some more are run.

    Raises:
        UserError: as of :func:`measure_layers`; on all ranks.
    """
    costs: tuple[LayerCost, ...] = ()
    missing = not all(map(has_value, (*model.variables, *model.optimizer.variables)))
    if parts == 1 and not engine.all_reduce(np.array(int(missing)), "max"):
        with engine.agreed():
            if engine.rank == 0:
                costs = measure_layers(model, batch, microbatches, steps=steps)
        return costs
    with engine.agreed():
        splitter, calls = BatchSplitter(model, batch, microbatches), calls_of(model)
        held = weight_bytes_by_call(model, calls)
        ranges = equal_ranges(held, max(parts, fewest_parts(held)))
        # Before the parts: what this trace leaves behind as free memory serves theirs. After them
        # it would find theirs in pieces, and rank 0 hold 40 MB more than others (of 24 blocks).
        saved: Saved = traced_saved(splitter) if engine.rank == 0 else {}
        gc.collect()  # Keras models refer to themselves: their memory would stay
    table = np.zeros((len(calls), len(CallSeconds._fields)))

    @contextlib.contextmanager
    def traced(number: int) -> Iterator[Callable[[], None]]:
        with traced_part(splitter, ranges, number) as (part, step):

            def measure() -> None:
                seconds = measure_part(part, step, len(ranges[number]), steps)
                table[ranges[number].start : ranges[number].stop] = seconds

            yield measure

    own = range(engine.rank, len(ranges), parts) if engine.rank < parts else range(0)
    measure_in_turns(traced, own, ranges, calls, engine)
    table = engine.all_reduce(table, "sum")
    with engine.agreed():
        if engine.rank == 0:
            of_calls = [CallSeconds(*row) for row in table.tolist()]
            costs = layer_costs(model, calls, splitter, of_calls, saved)
    return costs


def is_small(model: keras.Model) -> bool:
    """Whether any rank may hold the whole model for a moment."""
    held = weight_bytes_by_call(model, calls_of(model))
    return sum(call.state + call.gradients for call in held) <= SMALL_BYTES


def measure_small(
    model: keras.Model, batch: Any, microbatches: int, engine: Engine, *, steps: int
) -> tuple[tuple[LayerCost, ...], float | None]:
    """Measures the layers of a small model, and how long one process would take; all ranks call it.

    The arguments are those of :func:`measure_in_parts`.

    Returns:
        the costs of the model's calls on rank 0, and nothing on the others; the seconds in which
        one process with the cores of a rank trains on a whole batch, None if there is one rank, or
        if the batch has many activations.

    Raises:
        UserError: as of :func:`measure_layers`; on all ranks.
    """
    with engine.agreed():
        calls, divided = calls_of(model), BatchSplitter(model, batch, microbatches)
    whole = range(len(calls))
    costs: tuple[LayerCost, ...] = ()
    alone = np.zeros(())

    @contextlib.contextmanager
    def traced(number: int) -> Iterator[Callable[[], None]]:
        splitter = BatchSplitter(model, batch, 1) if number else divided
        with traced_part(splitter, [whole], 0) as (part, step):
            saved = saved_by_layer(step, part.calls)

            def measure_layers() -> None:
                nonlocal costs
                seconds = measure_part(part, step, len(calls), steps)
                costs = layer_costs(model, calls, splitter, seconds, saved)

            def measure_step() -> None:
                if sum(saved.values()) > SMALL_BYTES:
                    return
                with preserved(step.variables):
                    step.run()  # libraries tune themselves
                    alone[...] = undisturbed([step.run() for _ in range(ALONE_STEPS)])

            yield measure_step if number else measure_layers

    own = [engine.rank] if engine.rank < 2 else []
    measure_in_turns(traced, own, [whole, whole], calls, engine)
    return costs, float(engine.all_reduce(alone, "sum")) or None


def measure_in_turns(
    traced: Callable[[int], contextlib.AbstractContextManager[Callable[[], None]]],
    own: Sequence[int],
    ranges: Sequence[range],
    calls: Sequence[Call],
    engine: Engine,
) -> None:
    """Measures parts, of which one runs on a host at a time; all ranks call it.

    Args:
        traced: traces the part with this number, and gives what measures it, to be called once, in
            the block. All ranks trace their first part at the same time.
        own: numbers of the parts that this rank measures.
        ranges: the calls of each part.
        calls: all calls of the model.
        engine: the engine of the job.

    Raises:
        UserError: on all ranks, if a part cannot be measured.
    """

    def explained(part: int) -> contextlib.AbstractContextManager[None]:
        at = ranges[part]
        names = f"{calls[at.start].name} to {calls[at.stop - 1].name}"
        return explaining_lack_of_memory(f"the layers {names} are measured")

    # Ranks of a host are numbered in the order of their ranks: those that measure come first.
    turn = 0 if tf.config.get_visible_devices("GPU") else engine.local_rank
    last_turn = int(engine.all_reduce(np.array(turn if own else 0), "max"))
    with contextlib.ExitStack() as block:
        ready: list[Callable[[], None]] = []  # popped, as it holds what it measures
        with engine.agreed():
            for part in own[:1]:
                with explained(part):
                    ready.append(block.enter_context(traced(part)))
        for number in range(last_turn + 1):
            with engine.agreed():
                for part in own if number == turn else ():
                    with explained(part):
                        if not ready:
                            ready.append(block.enter_context(traced(part)))
                        ready.pop()()
                        block.close()
                    gc.collect()  # Keras models refer to themselves: their memory would stay


def fewest_parts(held: Sequence[WeightBytes]) -> int:
    """The least number of parts none of which holds more than PART_BYTES, or than the
    largest call alone, if that is more."""
    sizes = [call.state + call.gradients for call in held]
    most, parts, size = max(PART_BYTES, *sizes), 1, 0
    for each in sizes:
        if size + each > most:
            parts, size = parts + 1, 0
        size += each
    return parts


def equal_ranges(held: Sequence[WeightBytes], parts: int) -> tuple[range, ...]:
    """Divides calls into ranges that follow each other, such that the largest is small.

    Args:
        held: bytes that each call holds.
        parts: number of ranges; there are fewer if there are fewer calls.
    """
    layers = [LayerCost("", base_bytes=call.state + call.gradients) for call in held]
    return smallest_parts(layers, min(parts, len(layers)))


def measure_part(part: Part, traced: StepToMeasure, count: int, steps: int) -> list[CallSeconds]:
    """Measures the calls of a range, in order, in steps of these calls alone.

    Args:
        part: the calls, from :func:`traced_part`.
        traced: its step.
        count: number of calls of the range.
        steps: steps that are recorded; some more are run.
    """
    measured = seconds_of_calls(traced, part.model, part.calls, steps)
    found = [CallSeconds()] * count
    for at, seconds in zip(part.numbers, measured, strict=True):
        if at is not None:
            found[at] = seconds
    return found


@contextlib.contextmanager
def traced_part(
    splitter: BatchSplitter, ranges: Sequence[range], number: int
) -> Iterator[tuple[Part, StepToMeasure]]:
    """Gives a step of a range of calls alone, to run it in this block.

    Variables of these calls that have no value have one only in this block.

    Args:
        splitter: knows the whole model and the data.
        ranges: divide all calls of the model.
        number: of the range.
    """
    model, (inputs, _) = splitter.model, splitter.specs()
    with standing_in(model.variables, with_memory=False):
        stages = split(model, ranges)
        received = sent_specs(model, stages, inputs)[number - 1] if number else ()
        part = part_of(
            stages[number],
            received,
            splitter,
            trains_before=any(stage.model.trainable_variables for stage in stages[:number]),
            is_last=number == len(ranges) - 1,
        )
    fleeting = [variable for variable in part.model.variables if not has_value(variable)]
    # Updates are traced as they train, one large weight after the other.
    in_turn = one_after_the_other(without_scaling(part.model.optimizer))
    with standing_in(fleeting, with_memory=True), in_turn:
        traced = trace_step(part.model, part.batch)
        # Copies of what is thrown away would take as much memory again.
        fleeting += part.model.optimizer.variables
        handles = {id(handle_of(variable.value)) for variable in fleeting}
        kept = (each for each in traced.variables if id(handle_of(each)) not in handles)
        yield part, replace(traced, variables=tuple(kept))


def traced_saved(splitter: BatchSplitter) -> Saved:
    """What the layers of the whole model save, from a trace that is not run."""
    with traced_whole(splitter) as (part, traced):
        return saved_by_layer(traced, part.calls)


@contextlib.contextmanager
def traced_whole(splitter: BatchSplitter) -> Iterator[tuple[Part, StepToMeasure]]:
    """Gives a step of the whole model, which takes no memory for weights and cannot be run."""
    model = splitter.model
    calls = calls_of(model)
    with standing_in(model.variables, with_memory=False):
        [stage] = split(model, [range(len(calls))])
        part = part_of(stage, (), splitter, trains_before=False, is_last=True)
        part.model.compile(optimizer="sgd")  # which keeps nothing
        yield part, trace_step(part.model, part.batch)
