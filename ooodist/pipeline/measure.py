"""Measures what the stages of a model cost, on their ranks, as they will run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import tensorflow as tf

from ooodist.compat.keras_deferred import has_value
from ooodist.engines.devices import seconds_of, wait_for_gpu
from ooodist.graph.ops import num_bytes
from ooodist.pipeline.runtime.boundary import TensorBoundary
from ooodist.pipeline.runtime.gradients import Gradients
from ooodist.pipeline.runtime.update import Update
from ooodist.pipeline.runtime.work import StageWork
from ooodist.planner.pipeline.actions import Kind
from ooodist.planner.pipeline.costs import RECEIVES_AHEAD, StageCost
from ooodist.planner.pipeline.simulate import MeasuredRun
from ooodist.profiler.state import preserved
from ooodist.step.sharding.state import optimizer_bytes, state_bytes

if TYPE_CHECKING:
    from ooodist.pipeline.assembly import Assembly

UPDATES = 7
_PART_OF = {  # the action to which the seconds of a transfer are added
    Kind.RECV_F: Kind.F,
    Kind.SEND_F: Kind.F,
    Kind.RECV_B: Kind.I,
    Kind.SEND_B: Kind.I,
}


def measure_stages(
    assembly: Assembly,
    steps: Callable[[Callable[[], None]], list[MeasuredRun]],
    unfilled: Collection[int] = (),
) -> dict[int, StageCost]:
    """The costs of this rank's stages, by number, without the links.

    They are measured in steps of the whole pipeline, in which an action meets the caches, messages
    and neighbors that it will meet. Stages compute on zeros: that takes no less time. All state is
    restored afterwards.

    Args:
        assembly: this rank's; all ranks of the pipeline take part in its update.
        steps: runs some steps of a schedule with I and W separate, and calls its argument before
            each; returns what this rank did.
        unfilled: ids of variables whose values are not restored.
    """
    splitter, gradients = assembly.splitter, assembly.gradients
    inputs, targets = splitter.specs()
    model = splitter.model
    every = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    kept = [each for each in every if has_value(each) and id(each) not in unfilled]

    def begin() -> None:
        for number, work in assembly.works.items():
            data = [_zeros(inputs[place]) for place in assembly.reads[number]]
            compared = [_zeros(spec) for spec in targets]
            work.begin([data] * splitter.microbatches, [compared] * splitter.microbatches)

    with preserved([variable.value for variable in kept]):
        seconds = seconds_by_kind(steps(begin))
        gradients.clear()
        updates = [seconds_of(lambda: _update(assembly.update, gradients)) for _ in range(UPDATES)]
    return costs_of(assembly, seconds, statistics.median(updates))


def costs_of(
    assembly: Assembly, seconds: Mapping[tuple[int, str], float], update_seconds: float
) -> dict[int, StageCost]:
    """The costs of this rank's stages, by number, without the links.

    What the rank keeps all the time is that of its last stage; a weight that several of its stages
    share counts once.

    Args:
        assembly: this rank's; whether its variables have values does not matter.
        seconds: seconds of F, I and W of each stage, by (stage, kind).
        update_seconds: seconds of the end of a step.
    """
    model, works, gradients = assembly.splitter.model, assembly.works, assembly.gradients
    costs: dict[int, StageCost] = {}
    received, sent = [0], [0]
    for number, work in works.items():
        before, behind = _around(assembly.boundaries, number)
        costs[number] = StageCost(
            seconds[number, Kind.F],
            seconds[number, Kind.I],
            seconds[number, Kind.W],
            work.cut.input_bytes,
            work.cut.weight_bytes,
            work.cut.gradient_bytes,
            sent_bytes=behind.num_bytes(Kind.F) if behind else 0,
        )
        if before:
            received.append(before.num_bytes(Kind.F))
            sent.append(before.num_bytes(Kind.I))
        if behind:
            received.append(behind.num_bytes(Kind.I))
            sent.append(work.cut.output_bytes)
    last = max(works)  # trains if any stage of the rank does
    state, held = (
        state_bytes(model),
        {work.stage.name_of(v) for work in works.values() for v in work.stage.model.variables},
    )
    held_bytes = sum(state[name] for name in held)
    # What another replica keeps, where the optimizer is sharded.
    if elsewhere := [name for name in held if not gradients.updates(name)]:
        optimizer_state = optimizer_bytes(model)
        held_bytes -= sum(optimizer_state[name] for name in elsewhere)
    sums = sum(num_bytes(variable.value) for variable in gradients.variables.values())
    # Receive buffers, and one message that is being sent. What an action makes of a received
    # message is part of its workspace, or of the saved activations.
    messages = RECEIVES_AHEAD * max(received) + max(sent)
    workspace = max(work.cut.workspace_bytes for work in works.values())
    costs[last] = replace(
        costs[last],
        update=update_seconds,
        base_bytes=held_bytes + sums + messages + workspace,
        state_bytes=held_bytes,
    )
    return costs


class SynchronousWork:
    """Wraps a stage's work so that an action ends when the GPU has finished, not when it is queued.

    Args:
        work: the work of a stage.
    """

    def __init__(self, work: StageWork) -> None:
        self._work = work

    def forward(self, microbatch: int, received: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        sent = self._work.forward(microbatch, received)
        wait_for_gpu()
        return sent

    def input_gradient(self, microbatch: int, received: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        gradients = self._work.input_gradient(microbatch, received)
        wait_for_gpu()
        return gradients

    def weight_gradient(self, microbatch: int) -> None:
        self._work.weight_gradient(microbatch)
        wait_for_gpu()


class StepTimings:
    """Records what steps took, except for the first, in which libraries tune themselves.

    Attributes:
        ran: the actions of these steps.
        updates: seconds of the end of each step.
    """

    def __init__(self) -> None:
        self.ran: list[MeasuredRun] = []
        self.updates: list[float] = []
        self._is_first = True

    def add(self, ran: Sequence[MeasuredRun], update_seconds: float) -> None:
        """Adds the actions of a step, and the seconds of its end."""
        if not self._is_first:
            self.ran += ran
            self.updates.append(update_seconds)
        self._is_first = False


def seconds_by_kind(ran: Sequence[MeasuredRun]) -> dict[tuple[int, str], float]:
    """Median seconds of each stage's F, I and W, with the transfers that belong to them."""
    found: dict[tuple[int, str], list[float]] = {}
    for each in ran:
        seconds = each.end - each.start - each.waited
        found.setdefault((each.action.stage, each.action.kind), []).append(seconds)
    medians = {key: statistics.median(those) for key, those in found.items()}
    total: dict[tuple[int, str], float] = {}
    for (stage, kind), seconds in medians.items():
        key = stage, _PART_OF.get(kind, kind)
        total[key] = total.get(key, 0.0) + seconds
    return total


def _update(update: Update, gradients: Gradients) -> None:
    """Runs the end of a step without the sums over replicas, which run beside the last W."""
    gradients.begin()
    update(gradients.sums())
    gradients.clear()


def _around(
    boundaries: Sequence[TensorBoundary], stage: int
) -> tuple[TensorBoundary | None, TensorBoundary | None]:
    """The boundaries before and after a stage."""
    before = boundaries[stage - 1] if stage else None
    return before, boundaries[stage] if stage < len(boundaries) else None


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros(spec.shape, spec.dtype)
