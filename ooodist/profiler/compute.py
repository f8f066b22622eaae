"""Measures the seconds and bytes of a model's units, updates and launches on this machine.

A few steps are trained, in baseline order. TensorFlow's profiler tells which op ran when (ops that
run at the same time share it); its seconds are scaled so that they add up to those of steps that
run without it::

    a call    |launch| F a | F b | middle | dX b | dW b | dW a | updates |launch|

Afterwards the model is restored.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from ooodist.errors import UserError
from ooodist.graph.ops import num_bytes
from ooodist.graph.units import Unit
from ooodist.planner.costs import StepCosts, UnitCost, WeightCost
from ooodist.profiler.attribution import seconds_by_owner
from ooodist.profiler.owners import Owner
from ooodist.profiler.recording.matching import match_steps
from ooodist.profiler.recording.xplane import read_op_events, start_recording
from ooodist.profiler.saved_tensors import saved_tensors
from ooodist.profiler.state import preserved
from ooodist.profiler.step import StepToMeasure
from ooodist.step.sending.low_rank import columns_of
from ooodist.step.sending.rows import row_bytes

logger = logging.getLogger("ooodist")

ROUNDS = 2  # at least, unless steps agree: each of timed steps, recorded ones and timed ones
ROUND_SECONDS = 2.5  # that a round takes; at least two steps of it are recorded
MOST_SECONDS = 8.0  # in which rounds begin
STEADY = 0.05  # the median of timed steps that agree is by this share above the undisturbed ones


def measure_step(traced: StepToMeasure, *, steps: int = 12) -> StepCosts:
    """Measures a traced step on this worker, without exchanges. The model is restored.

    Args:
        traced: the step.
        steps: how many steps are recorded at most (and about as many timed); fewer if they take
            long, or if they agree.

    Raises:
        UserError: TensorFlow's profiler is in use.
    """
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
    """Measured times of one step.

    Attributes:
        seconds: seconds by owner; under None those of ops without an owner.
        launch_seconds: seconds of the call before its first and after its last op.
        first_call_seconds: seconds that the first call took longer than the others.
    """

    seconds: dict[Owner | None, float]
    launch_seconds: float
    first_call_seconds: float


def measure_owners(traced: StepToMeasure, *, steps: int = 12) -> MeasuredOwners:
    """Measures how long the ops of each owner take; see :func:`measure_step`."""
    with preserved(traced.variables):
        first_seconds = traced.run()
        warm_seconds = traced.run()
        calls = min(-(-steps // ROUNDS), max(2, int(ROUND_SECONDS / (2 * warm_seconds))))
        half = (calls + 1) // 2
        timed: list[float] = []
        recorded: list[_RecordedCall] = []
        began = time.perf_counter()
        while len(recorded) < steps and time.perf_counter() - began < MOST_SECONDS:
            # Before and after, so that changes of the machine's speed affect both.
            timed += [traced.run() for _ in range(half)]
            recorded += _record(traced, calls)
            timed += [traced.run() for _ in range(half)]
            if statistics.median(timed) <= (1 + STEADY) * undisturbed(timed):
                break
    call_seconds = undisturbed(timed)
    owners = dict.fromkeys(owner for call in recorded for owner in call.seconds)
    seconds = {
        owner: undisturbed([call.seconds.get(owner, 0.0) for call in recorded]) for owner in owners
    }
    # The work is the same each time: a longer call has waited for other processes.
    outside = min(call.outside for call in recorded)
    # For a tiny step, the time outside is longer under the profiler than the whole call without.
    launch_seconds = min(outside, call_seconds * outside / (outside + sum(seconds.values())))
    scale = (call_seconds - launch_seconds) / sum(seconds.values())
    logger.debug(
        "profile: a step takes %.2f ms (median of all %.2f), %.2f ms of it the start of the call; "
        "recorded seconds count %.3f times",
        call_seconds * 1e3,
        statistics.median(timed) * 1e3,
        launch_seconds * 1e3,
        scale,
    )
    return MeasuredOwners(
        {owner: scale * own for owner, own in seconds.items()},
        launch_seconds,
        max(0.0, first_seconds - call_seconds),
    )


def undisturbed(seconds: Sequence[float]) -> float:
    """The median of the faster half: interference of other processes does not count."""
    ordered = sorted(seconds)
    return statistics.median(ordered[: (len(ordered) + 1) // 2])


class _RecordedCall(NamedTuple):
    """A recorded call: seconds by owner, and seconds before its first and after its last op."""

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
            # One more, as the last may still be ending when the recording does (on GPUs it is).
            calls = [traced.run() for _ in range(num_calls + 1)]
        finally:
            tf.profiler.experimental.stop()
        found = match_steps(read_op_events(Path(folder)), [traced.step])
    if len(found) < num_calls:
        raise UserError(
            f"TensorFlow's profiler has recorded {len(found)} of {num_calls + 1} steps, so they "
            "cannot be measured; profile while nothing else trains in this process"
        )
    by_step = [seconds_by_owner(step.events, traced.owner_of) for step in found[:num_calls]]
    return [
        _RecordedCall(step, max(0.0, call - sum(step.values())))
        for call, step in zip(calls[:num_calls], by_step, strict=True)
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
    """Each trained weight's costs; weights split the time of shared ops by their bytes."""
    sizes = {weight.name: num_bytes(weight.gradient) for weight in traced.weights}
    updates = dict.fromkeys(sizes, 0.0)
    for owner, spent in seconds.items():
        if isinstance(owner, frozenset):
            total = sum(sizes[name] for name in owner)
            for name in owner:
                share = sizes[name] / total if total else 1 / len(owner)
                updates[name] += spent * share
    return tuple(
        WeightCost(
            name,
            sizes[name],
            weight.gradient.dtype.name,
            updates[name],
            row_bytes(weight.gradient),
            columns_of(weight.gradient),
        )
        for name, weight in zip(sizes, traced.weights, strict=True)
    )
