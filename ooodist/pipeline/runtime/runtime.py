"""Carries out a schedule on one rank: exactly its actions, in its order.

Receives are posted some messages ahead; what a stage sends is transferred while the next action is
computed (see transport.py). If two consecutive stages are on one rank, values are passed directly.

How to compute, and what is sent between stages, is defined elsewhere: with TensorFlow (work.py,
boundary.py), or as waits (ooodist.emulation).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from ooodist.pipeline.runtime.final_weight_gradients import parts_by_action
from ooodist.pipeline.runtime.tags import check_tags, message_tags
from ooodist.pipeline.runtime.transport import Message, Transport
from ooodist.planner.pipeline.actions import Action, Kind, Schedule, tail_of, without_transfers
from ooodist.planner.pipeline.costs import RECEIVES_AHEAD
from ooodist.planner.pipeline.dependencies import with_transfers
from ooodist.planner.pipeline.simulate import MeasuredRun

MadeOf = tuple[int, str, int]  # stage that needs it, Kind.F or Kind.I, micro-batch


class Work(Protocol):
    """The computations of one stage of a rank."""

    def forward(self, microbatch: int, received: Sequence[Any]) -> Sequence[Any]:
        """Computes what this stage sends from what the previous one sent (none for the first)."""

    def input_gradient(self, microbatch: int, received: Sequence[Any]) -> Sequence[Any]:
        """Computes the gradients of what this stage has received from those of what it has sent
        (none for the last stage)."""

    def weight_gradient(self, microbatch: int) -> None:
        """Computes the weight gradients; any time after the input gradient."""


class DividedWork(Work, Protocol):
    """A work whose weight gradients can be computed in parts."""

    @property
    def parts(self) -> int:
        """The number of parts."""

    def weight_gradient_part(self, microbatch: int, part: int) -> None:
        """Computes one; all of them, in order, do what ``weight_gradient`` does."""


class Boundary(Protocol):
    """The connection of a stage to the next: Kind.F to it, Kind.I back from it."""

    def receive_buffers(self, kind: str) -> Sequence[Any]:
        """Arrays, or other memory that MPI takes, to receive such a message into."""

    def pack(self, kind: str, values: Sequence[Any]) -> Sequence[Any]:
        """The arrays of a message, which must not be changed until it is sent."""

    def unpack(self, kind: str, arrays: Sequence[Any]) -> Sequence[Any]:
        """The values of a message; nobody else uses its arrays."""

    def link_seconds(self, kind: str) -> float:
        """The seconds of a message on an emulated link; 0 where links are real."""


class Runtime:
    """Runs the actions of one rank of a pipeline.

    Args:
        schedule: the schedule of all ranks.
        transport: to the other ranks; its rank is the position in the schedule.
        works: works of this rank's stages, by number.
        boundaries: the boundary after each stage but the last.
        divided: of the works, those whose W's in the rank's tail run part by part; see
            final_weight_gradients.py.

    Attributes:
        began: when the last step began, as ``time.perf_counter()``.
    """

    def __init__(
        self,
        schedule: Schedule,
        transport: Transport,
        works: Mapping[int, Work],
        boundaries: Sequence[Boundary],
        *,
        divided: Mapping[int, DividedWork] = MappingProxyType({}),
    ) -> None:
        self.began = 0.0
        self._schedule = schedule
        self._transport = transport
        self._works = works
        self._boundaries = boundaries
        self._first_trained = schedule.first_trained
        self._actions = with_transfers(schedule).actions[transport.rank]
        kinds = [action.kind for action in self._actions]
        self._last_forward = max(at for at, kind in enumerate(kinds) if kind == Kind.F)
        self._receives = [a for a in self._actions if a.kind in (Kind.RECV_F, Kind.RECV_B)]
        self._there: dict[MadeOf, Sequence[Any]] = {}
        self._posted: list[Message] = []
        self._next_receive = 0
        self._tags = message_tags(schedule)
        check_tags(self._tags, transport.largest_tag)
        self._divided = divided
        self._parts = parts_by_action(
            tail_of(without_transfers(schedule).actions[transport.rank]),
            {number: work.parts for number, work in divided.items()},
        )
        self._do: dict[str, Callable[[Action], float]] = {
            Kind.F: self._forward,
            Kind.I: self._input_gradient,
            Kind.W: self._weight_gradient,
            Kind.B: self._backward,
            Kind.SEND_F: self._send,
            Kind.SEND_B: self._send,
            Kind.RECV_F: self._receive,
            Kind.RECV_B: self._receive,
        }

    def step(self, after_forward: Callable[[], None] = lambda: None) -> list[MeasuredRun]:
        """Runs all micro-batches of a step, up to the sums of the weight gradients; no update.

        Args:
            after_forward: called once the last F of this rank is done.

        Returns:
            the actions that were run, with times.

        Raises:
            Stalled: a message did not come in time.
        """
        self._next_receive = 0
        self.began = begin = time.perf_counter()
        for _ in range(RECEIVES_AHEAD):
            self._post_receive()
        ran = []
        for number, action in enumerate(self._actions):
            start = time.perf_counter()
            waited = self._do[action.kind](action)
            ran.append(MeasuredRun(action, start - begin, time.perf_counter() - begin, waited))
            if number == self._last_forward:
                after_forward()
        self._transport.flush()
        return ran

    # Computing

    def _forward(self, action: Action) -> float:
        stage, _, microbatch = action
        received = self._there.pop((stage, Kind.F, microbatch), ())
        sent = self._works[stage].forward(microbatch, received)
        if stage < self._schedule.stages - 1:
            self._there[stage + 1, Kind.F, microbatch] = sent
        return 0.0

    def _input_gradient(self, action: Action) -> float:
        stage, _, microbatch = action
        received = self._there.pop((stage, Kind.I, microbatch), ())
        gradients = self._works[stage].input_gradient(microbatch, received)
        if stage > self._first_trained:  # no stage before that one needs gradients
            self._there[stage - 1, Kind.I, microbatch] = gradients
        return 0.0

    def _weight_gradient(self, action: Action) -> float:
        if action not in self._parts:
            self._works[action.stage].weight_gradient(action.microbatch)
            return 0.0
        for microbatch, part in self._parts[action]:
            self._divided[action.stage].weight_gradient_part(microbatch, part)
        return 0.0

    def _backward(self, action: Action) -> float:
        self._input_gradient(action)
        return self._weight_gradient(action)

    # Messages

    def _send(self, action: Action) -> float:
        stage, kind, microbatch = action
        to, made = (stage + 1, Kind.F) if kind == Kind.SEND_F else (stage - 1, Kind.I)
        boundary = self._boundaries[min(stage, to)]
        self._transport.send(
            str(action),
            self._schedule.rank_of[to],
            self._tag(to, made, microbatch),
            boundary.pack(made, self._there.pop((to, made, microbatch))),
            link_seconds=boundary.link_seconds(made),
        )
        return 0.0

    def _receive(self, action: Action) -> float:
        message = self._posted.pop(0)
        self._post_receive()
        waited = self._transport.wait(message)
        _, made, boundary = self._what(action)
        self._there[action.stage, made, action.microbatch] = boundary.unpack(made, message.arrays)
        return waited

    def _post_receive(self) -> None:
        if self._next_receive == len(self._receives):
            return
        action = self._receives[self._next_receive]
        self._next_receive += 1
        of, made, boundary = self._what(action)
        peer = self._schedule.rank_of[of]
        tag = self._tag(action.stage, made, action.microbatch)
        places = boundary.receive_buffers(made)
        self._posted.append(self._transport.receive(str(action), peer, tag, places))

    def _what(self, action: Action) -> tuple[int, str, Boundary]:
        """Finds, for a receive, the sending stage, what it sends, and the boundary between."""
        if action.kind == Kind.RECV_F:
            return action.stage - 1, Kind.F, self._boundaries[action.stage - 1]
        return action.stage + 1, Kind.I, self._boundaries[action.stage]

    def _tag(self, stage: int, made: str, microbatch: int) -> int:
        """A tag that both sides share; consecutive steps reuse it, and MPI keeps order."""
        return self._tags[stage, made].start + microbatch
