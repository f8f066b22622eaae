"""Seconds and bytes of a model's units, updates and launches on this machine.

A few steps are trained, in baseline order. TensorFlow's profiler tells which op ran when (of ops
that ran at a time each gets its share); its seconds are scaled so that they add up to those of
steps without it::

    a call    |launch| F a | F b | middle | dX b | dW b | dW a | updates |launch|

Afterwards the model is as it was before.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.graph.ops import num_bytes
from ooodist.graph.units import Unit
from ooodist.planner.costs import StepCosts, UnitCost, WeightCost
from ooodist.profiler.attribution import seconds_by_owner
from ooodist.profiler.memory import saved_tensors
from ooodist.profiler.owners import Owner
from ooodist.profiler.recording.matching import match_steps
from ooodist.profiler.recording.xplane import read_op_events, start_recording
from ooodist.profiler.state import preserved
from ooodist.profiler.step import StepToMeasure, trace_step
from ooodist.step.launch import Batch

logger = logging.getLogger("ooodist")

WARM_UP_STEPS = 3  # libraries tune themselves in the first ones
ROUNDS = 3  # of timed steps, then recorded ones
MOST_SECONDS = 10.0  # of recorded steps (timed ones take twice that); a step a round is the least


def measure_compute(
    model: keras.Model, batch: Batch, *, accumulate: int = 1, steps: int = 12
) -> StepCosts:
    """Measures one training step on this worker. Nothing is exchanged; the model stays as it is.

    Args:
        model: compiled; built or not.
        batch: as its data set yields it.
        accumulate: batches an update; each is as ``batch``.
        steps: how many are recorded (twice as many are timed); fewer if they take long.

    Raises:
        UserError: the step runs eagerly, trains nothing, or has several backward passes; or
            TensorFlow's profiler is in use.
    """
    return measure_step(trace_step(model, batch, accumulate=accumulate), steps=steps)


def measure_step(traced: StepToMeasure, *, steps: int = 12) -> StepCosts:
    """Measures a step that was traced; see :func:`measure_compute`."""
    measured = measure_owners(traced, steps=steps)
    seconds = measured.seconds
    return StepCosts(
        forward=_unit_costs(traced.step.forward, seconds),
        backward=_unit_costs(traced.step.backward, seconds),
        weights=weight_costs(traced, seconds),
        tensors=saved_tensors(traced.step, traced.owner_of, traced.weights),
        middle_seconds=seconds.get(None, 0.0),
        launch_seconds=measured.launch_seconds,
        trace_seconds=traced.trace_seconds + measured.first_call_seconds,
        base_bytes=sum(v.shape.num_elements() * v.dtype.size for v in traced.variables),
    )


class MeasuredOwners(NamedTuple):
    """Of one step.

    Attributes:
        seconds: by owner; under None those of ops that have no owner.
        launch_seconds: of the call, before the first and after the last op.
        first_call_seconds: what the first call took longer than the others.
    """

    seconds: dict[Owner | None, float]
    launch_seconds: float
    first_call_seconds: float


def measure_owners(traced: StepToMeasure, *, steps: int = 12) -> MeasuredOwners:
    """Measures how long the ops of each owner take; see :func:`measure_compute`."""
    with preserved(traced.variables):
        first_seconds = traced.run()
        warm_seconds = [traced.run() for _ in range(WARM_UP_STEPS)][-1]
        calls = max(1, min(steps, int(MOST_SECONDS / warm_seconds)) // ROUNDS)
        timed: list[float] = []
        recorded: list[_RecordedCall] = []
        # In turns, so that a machine that changes its speed meets both.
        for _ in range(ROUNDS):
            timed += [traced.run() for _ in range(2 * calls)]
            recorded += _record(traced, calls)
    call_seconds = undisturbed(timed)
    owners = dict.fromkeys(owner for call in recorded for owner in call.seconds)
    medians = {
        owner: statistics.median(call.seconds.get(owner, 0.0) for call in recorded)
        for owner in owners
    }
    # The same work each time: what a call takes longer, it has waited for other processes.
    outside = min(call.outside for call in recorded)
    # Of a tiny step, what is outside takes longer under the profiler than the whole without it.
    launch_seconds = min(outside, call_seconds * outside / (outside + sum(medians.values())))
    scale = (call_seconds - launch_seconds) / sum(medians.values())
    logger.debug(
        "profile: a step takes %.2f ms (median of all %.2f), %.2f ms of it the launch; recorded "
        "seconds count %.3f times",
        call_seconds * 1e3,
        statistics.median(timed) * 1e3,
        launch_seconds * 1e3,
        scale,
    )
    return MeasuredOwners(
        {owner: scale * recorded for owner, recorded in medians.items()},
        launch_seconds,
        max(0.0, first_seconds - call_seconds),
    )


def undisturbed(seconds: Sequence[float]) -> float:
    """The median of the faster half: what other processes take now and then does not count."""
    ordered = sorted(seconds)
    return statistics.median(ordered[: (len(ordered) + 1) // 2])


class _RecordedCall(NamedTuple):
    """Seconds by owner, and those of the call before its first and after its last op."""

    seconds: dict[Owner | None, float]
    outside: float


def _record(traced: StepToMeasure, num_calls: int) -> list[_RecordedCall]:
    with tempfile.TemporaryDirectory(prefix="ooodist-profile-") as folder:
        try:
            start_recording(Path(folder))
        except tf.errors.AlreadyExistsError as error:
            raise UserError(
                "TensorFlow's profiler is in use, so the steps cannot be measured; end its "
                "recording before (TensorBoard's profile_batch), or profile before the training"
            ) from error
        try:
            calls = [traced.run() for _ in range(num_calls)]
        finally:
            tf.profiler.experimental.stop()
        found = match_steps(read_op_events(Path(folder)), [traced.step])
    if len(found) != num_calls:
        raise UserError(
            f"TensorFlow's profiler has recorded {len(found)} of {num_calls} steps, so they "
            "cannot be measured; profile while nothing else trains in this process"
        )
    by_step = [seconds_by_owner(step.events, traced.owner_of) for step in found]
    return [
        _RecordedCall(step, max(0.0, call - sum(step.values())))
        for call, step in zip(calls, by_step, strict=True)
    ]


def _unit_costs(
    units: Sequence[Unit], seconds: Mapping[Owner | None, float]
) -> tuple[UnitCost, ...]:
    return tuple(
        UnitCost(
            unit.name,
            unit.kind,
            seconds.get(unit.name, 0.0),
            tuple(sorted(unit.needs)),
            unit.variables,
        )
        for unit in units
    )


def weight_costs(
    traced: StepToMeasure, seconds: Mapping[Owner | None, float]
) -> tuple[WeightCost, ...]:
    """Of each trained weight; what several weights need together is shared out by their bytes."""
    sizes = {weight.name: num_bytes(weight.gradient) for weight in traced.weights}
    updates = dict.fromkeys(sizes, 0.0)
    for owner, spent in seconds.items():
        if isinstance(owner, frozenset):
            total = sum(sizes[name] for name in owner)
            for name in owner:
                share = sizes[name] / total if total else 1 / len(owner)
                updates[name] += spent * share
    return tuple(
        WeightCost(name, sizes[name], weight.gradient.dtype.name, updates[name])
        for name, weight in zip(sizes, traced.weights, strict=True)
    )
