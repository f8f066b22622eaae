"""Carries out a schedule on one rank: exactly its actions, in its order.

Receives are posted some messages ahead; what a stage sends goes on its way while the next action is
computed (see transport.py). Where two stages that follow each other are on one rank, they hand over
directly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from ooodist.pipeline.transport import Message, Transport
from ooodist.pipeline.work import StageWork
from ooodist.schedule.actions import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    RECEIVE_BACKWARD,
    RECEIVE_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    with_transfers,
)

RECEIVES_AHEAD = 4  # messages for which there is a place before they are needed
MadeOf = tuple[int, str, int]  # stage that needs it, FORWARD or INPUT_GRADIENT, micro-batch


@dataclass(frozen=True)
class Ran:
    """An action that was carried out.

    Attributes:
        action: which.
        start, end: seconds, from the beginning of the step.
        waited: of these, seconds without anything to do.
    """

    action: Action
    start: float
    end: float
    waited: float


class Runtime:
    """One rank of a pipeline.

    Args:
        schedule: of all ranks.
        transport: to the other ranks; its rank is the one of the schedule.
        works: of this rank's stages, by number.
        sent_specs: for each stage but the last, what it sends for a micro-batch.
    """

    def __init__(
        self,
        schedule: Schedule,
        transport: Transport,
        works: Mapping[int, StageWork],
        sent_specs: Sequence[Sequence[tf.TensorSpec]],
    ) -> None:
        self._schedule = schedule
        self._transport = transport
        self._works = works
        self._sent_specs = sent_specs
        self._actions = with_transfers(schedule).actions[transport.rank]
        self._receives = [a for a in self._actions if a.kind in (RECEIVE_FORWARD, RECEIVE_BACKWARD)]
        self._do: dict[str, Callable[[Action], float]] = {
            FORWARD: self._forward,
            INPUT_GRADIENT: self._input_gradient,
            WEIGHT_GRADIENT: self._weight_gradient,
            BACKWARD: self._backward,
            SEND_FORWARD: self._send,
            SEND_BACKWARD: self._send,
            RECEIVE_FORWARD: self._receive,
            RECEIVE_BACKWARD: self._receive,
        }

    def step(
        self,
        inputs: Callable[[int, int], Sequence[tf.Tensor]],
        targets: Callable[[int], Sequence[tf.Tensor]],
        on_outputs: Callable[[int, Sequence[tf.Tensor]], None] | None = None,
    ) -> tuple[float, list[Ran]]:
        """All micro-batches of a step, to the sums of the weight gradients; no update.

        Args:
            inputs: (stage, micro-batch) -> what the stage reads of the data.
            targets: micro-batch -> what the loss compares with.
            on_outputs: is told each micro-batch's outputs of the model, where the last stage is.

        Returns:
            what this rank's stages add to the mean loss of the step, and what was done when.

        Raises:
            Stalled: a message did not come.
        """
        self._inputs, self._targets, self._on_outputs = inputs, targets, on_outputs
        self._there: dict[MadeOf, list[tf.Tensor]] = {}
        self._losses: list[tf.Tensor] = []
        self._posted: list[Message] = []
        self._next_receive = 0
        begin = time.perf_counter()
        for _ in range(RECEIVES_AHEAD):
            self._post_receive()
        ran = []
        for action in self._actions:
            start = time.perf_counter()
            waited = self._do[action.kind](action)
            ran.append(Ran(action, start - begin, time.perf_counter() - begin, waited))
        self._transport.flush()
        loss = sum(float(loss) for loss in self._losses) / self._schedule.microbatches
        return loss, ran

    # Computing

    def _forward(self, action: Action) -> float:
        stage, _, microbatch = action
        work = self._works[stage]
        received = self._there.pop((stage, FORWARD, microbatch), [])
        is_last = stage == self._schedule.stages - 1
        sent, loss = work.forward(
            microbatch,
            [*self._inputs(stage, microbatch), *received],
            self._targets(microbatch) if is_last else (),
        )
        self._losses.append(loss)
        if not is_last:
            self._there[stage + 1, FORWARD, microbatch] = sent
        elif self._on_outputs is not None:
            self._on_outputs(microbatch, sent)
        return 0.0

    def _input_gradient(self, action: Action) -> float:
        stage, _, microbatch = action
        received = self._there.pop((stage, INPUT_GRADIENT, microbatch), [])
        gradients = self._works[stage].input_gradient(microbatch, received)
        if stage > 0:
            self._there[stage - 1, INPUT_GRADIENT, microbatch] = [
                tf.zeros(spec.shape, spec.dtype) if gradient is None else gradient
                for spec, gradient in zip(self._sent_specs[stage - 1], gradients, strict=True)
                if spec.dtype.is_floating
            ]
        return 0.0

    def _weight_gradient(self, action: Action) -> float:
        self._works[action.stage].weight_gradient(action.microbatch)
        return 0.0

    def _backward(self, action: Action) -> float:
        self._input_gradient(action)
        return self._weight_gradient(action)

    # Messages

    def _send(self, action: Action) -> float:
        stage, kind, microbatch = action
        to, made = (stage + 1, FORWARD) if kind == SEND_FORWARD else (stage - 1, INPUT_GRADIENT)
        arrays = [as_bytes(tensor) for tensor in self._there.pop((to, made, microbatch))]
        peer = self._schedule.rank_of[to]
        self._transport.send(str(action), peer, self._tag(to, made, microbatch), arrays)
        return 0.0

    def _receive(self, action: Action) -> float:
        stage, kind, microbatch = action
        message = self._posted.pop(0)
        self._post_receive()
        waited = self._transport.wait(message)
        made = FORWARD if kind == RECEIVE_FORWARD else INPUT_GRADIENT
        self._there[stage, made, microbatch] = [
            from_bytes(array, spec)
            for array, spec in zip(message.arrays, self._specs_of(action), strict=True)
        ]
        return waited

    def _post_receive(self) -> None:
        if self._next_receive == len(self._receives):
            return
        action = self._receives[self._next_receive]
        self._next_receive += 1
        stage, kind, microbatch = action
        of, made = (stage - 1, FORWARD) if kind == RECEIVE_FORWARD else (stage + 1, INPUT_GRADIENT)
        arrays = [
            np.empty(spec.shape.num_elements() * spec.dtype.size, np.uint8)
            for spec in self._specs_of(action)
        ]
        peer = self._schedule.rank_of[of]
        tag = self._tag(stage, made, microbatch)
        self._posted.append(self._transport.receive(str(action), peer, tag, arrays))

    def _specs_of(self, action: Action) -> list[tf.TensorSpec]:
        """Of what an action receives."""
        if action.kind == RECEIVE_FORWARD:
            return list(self._sent_specs[action.stage - 1])
        return [spec for spec in self._sent_specs[action.stage] if spec.dtype.is_floating]

    def _tag(self, stage: int, made: str, microbatch: int) -> int:
        """The same on both sides; steps that follow each other share it, and keep their order."""
        kind = 0 if made == FORWARD else 1
        return (2 * stage + kind) * self._schedule.microbatches + microbatch


def as_bytes(tensor: tf.Tensor) -> np.ndarray:
    """The bytes of a tensor, of any dtype; shape (number of bytes,)."""
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)


def from_bytes(array: np.ndarray, spec: tf.TensorSpec) -> tf.Tensor:
    """The tensor of such bytes."""
    return tf.convert_to_tensor(array.view(spec.dtype.as_numpy_dtype).reshape(spec.shape))
