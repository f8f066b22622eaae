"""A slow, obvious simulator: the clock moves from event to event, and queues are plain lists.

It shares no code with ooodist.planner.data_parallel.simulate, which must say the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ooodist.planner.costs import Network, StepCosts, UnitCost
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange, split_evenly


@dataclass
class Piece:
    """What travels at one time. `stage_end`: when the stage of its way in which it is ends."""

    step: int
    place: int
    exchange: PlannedExchange
    num_bytes: int
    is_last: bool
    ready: float = 0.0
    begin: float = 0.0
    stage_end: float = math.inf


@dataclass
class Job:
    """What the compute stream does for a while."""

    step: int
    name: str
    kind: str
    seconds: float
    waits_for: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    start: float = 0.0


@dataclass
class Reference:
    """Plays calls, one after the other, when it is made; the attributes say what happened.

    Steps are numbered through; the clock is set to 0 when a call begins. `ends`: of each call, its
    seconds, and the numbers of units and exchanges until then.
    """

    costs: StepCosts
    network: Network
    plan: Plan
    calls: int = 1
    clock: float = 0.0
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    units: list[tuple[int, str, str, float, float]] = field(default_factory=list)
    exchanges: list[tuple[int, str, int, float, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        per_call = self.plan.steps_per_execution
        self.steps = self.calls * per_call
        self.last_steps = range(per_call - 1, self.steps, per_call)  # of their calls
        self.to_run = [job for step in range(self.steps) for job in self.jobs(step)]
        self.running: Job | None = None
        self.idle_seconds = 0.0  # that the stream has done nothing since the last arrival
        self.last_arrival = 0.0
        self.to_deal_with: list[Job] = []  # CPU time of exchanges, and updates
        self.gradients_ready: dict[tuple[int, str], float] = {}
        self.calls_ended: dict[int, float] = {}  # by the last step: when the next call begins
        self.parts_arrived: dict[tuple[int, str], int] = {}
        self.arrived: set[tuple[int, str]] = set()
        self.updated: set[tuple[int, str]] = set()
        self.to_exchange = [
            [
                self.split(step, place, exchange)
                for place, exchange in sorted(
                    enumerate(self.plan.exchanges),
                    key=lambda pair, step=step: self.is_left(step, pair[1]),
                )
            ]
            for step in range(self.steps)
        ]
        # The way of a piece: latency, the first lane's queue, that lane, the second's, that lane.
        self.starting: list[Piece] = []
        self.push_queue: list[Piece] = []
        self.pushing: list[Piece] = []
        self.pull_queue: list[Piece] = []
        self.pulling: list[Piece] = []
        while True:
            while self.act():
                pass
            times = [piece.stage_end for piece in self.starting + self.pushing + self.pulling]
            if self.running:
                times.append(self.running.start + self.running.seconds)
            if not times:
                break
            if self.running or self.last_arrival == self.clock:
                self.idle_seconds = 0.0
            if not self.running:
                self.idle_seconds += min(times) - self.clock
            self.clock = min(times)
        assert not self.to_run
        assert len(self.updated) == self.steps * len(self.costs.weights)

    def jobs(self, step: int) -> list[Job]:
        by_name = {unit.name: unit for unit in self.costs.backward}
        order = self.plan.order
        backward = [by_name[name] for name in order] if order is not None else self.costs.backward
        named = {weight for unit in backward for weight in unit.weights}
        unnamed = tuple(w.name for w in self.costs.weights if w.name not in named)

        def job(unit: UnitCost) -> Job:
            if unit.kind == "F":
                return Job(step, unit.name, "F", unit.seconds, waits_for=unit.weights)
            return Job(step, unit.name, unit.kind, unit.seconds, gradients=unit.weights)

        middle = Job(step, "middle", "middle", self.costs.middle_seconds, gradients=unnamed)
        jobs = [*map(job, self.costs.forward), middle, *map(job, backward)]
        if step in self.last_steps:
            jobs.append(Job(step, "", "launch", self.costs.launch_seconds))
        return jobs

    def is_left(self, step: int, exchange: PlannedExchange) -> bool:
        """Whether the call of the step leaves its exchange to the next one."""
        return self.network.workers > 1 and step in self.last_steps and exchange.carried

    def ready(self, step: int, exchange: PlannedExchange) -> float:
        """When an exchange may start; infinite if it may not yet."""
        if self.is_left(step, exchange):
            return self.calls_ended.get(step, math.inf)
        return max(self.gradients_ready.get((step, name), math.inf) for name in exchange.weights)

    def split(self, step: int, place: int, exchange: PlannedExchange) -> list[Piece]:
        sizes = {weight.name: weight.num_bytes for weight in self.costs.weights}
        num_bytes = sum(sizes[name] for name in exchange.weights)
        if exchange.parts > 1:  # the gradients of these tests are of float32
            num_bytes = 4 * split_evenly(num_bytes // 4, 4, exchange.parts)[exchange.part]
        most = self.plan.partition_bytes or max(num_bytes, 1)
        pieces = []
        while num_bytes > most:
            pieces.append(Piece(step, place, exchange, most, False))
            num_bytes -= most
        return [*pieces, Piece(step, place, exchange, num_bytes, True)]

    def act(self) -> bool:
        """One thing that happens at this time; False: nothing more."""
        return (
            self.end_job()
            or self.end_latency()
            or self.end_push()
            or self.begin_push()
            or self.end_pull()
            or self.begin_pull()
            or self.enter()
            or self.begin_job()
        )

    def end_job(self) -> bool:
        job = self.running
        if job is None or job.start + job.seconds > self.clock:
            return False
        self.running = None
        if job.kind == "launch":
            self.ends.append((self.clock, len(self.units), len(self.exchanges)))
            self.clock = self.last_arrival = 0.0
            self.idle_seconds = 0.0  # a stream that has not begun is not idle
            self.calls_ended[job.step] = self.clock
        elif job.kind != "cpu":
            self.units.append((job.step, job.name, job.kind, job.start, self.clock))
        if job.kind == "update":
            self.updated.add((job.step, job.name))
        for name in job.gradients:
            self.gradients_ready[job.step, name] = self.clock
        if self.network.workers == 1:
            for weight in self.costs.weights:
                if weight.name in job.gradients:
                    self.update(job.step, weight.name)
        return True

    def begin_job(self) -> bool:
        if self.running is None and self.to_deal_with:
            self.running = self.to_deal_with.pop(0)
        elif self.running is None and self.to_run:
            step = self.to_run[0].step
            waits_for = self.to_run[0].waits_for
            if step > 0 and any((step - 1, name) not in self.updated for name in waits_for):
                return False
            if self.to_run[0].kind == "launch" and not self.is_through(step):
                return False
            self.running = self.to_run.pop(0)
        else:
            return False
        self.running.start = self.clock
        return True

    def is_through(self, last: int) -> bool:
        """Whether all steps until then are through but for what the last one leaves."""
        left = [each for each in self.plan.exchanges if self.is_left(last, each)]
        late = {name for each in left for name in each.weights}
        return all(
            (step, weight.name) in self.updated or (step == last and weight.name in late)
            for step in range(last + 1)
            for weight in self.costs.weights
        ) and all(
            (last, each.name) in self.arrived or each in left or self.network.workers == 1
            for each in self.plan.exchanges
        )

    def update(self, step: int, name: str) -> None:
        seconds = next(w.update_seconds for w in self.costs.weights if w.name == name)
        self.to_deal_with.append(Job(step, name, "update", seconds))

    def candidates(self) -> list[list[Piece]]:
        """Exchanges that are ready, of which pieces have not entered yet: the next one first."""
        waiting = [pieces for step in self.to_exchange for pieces in step if pieces]
        ready = [
            pieces
            for pieces in waiting
            if self.ready(pieces[0].step, pieces[0].exchange) < math.inf
        ]
        if not self.plan.by_urgency:
            return ready[:1] if ready[:1] == waiting[:1] else []
        return sorted(ready, key=lambda pieces: (pieces[0].place, pieces[0].step))

    def enter(self) -> bool:
        if self.network.workers == 1 or not self.candidates():
            return False
        pieces = self.candidates()[0]
        on_their_way = (
            self.starting + self.push_queue + self.pushing + self.pull_queue + self.pulling
        )
        if self.plan.by_urgency:
            count = len(on_their_way)
        else:
            count = len({(piece.step, piece.place) for piece in on_their_way})
        if self.plan.credit is not None and count >= self.plan.credit:
            return False
        number = 1 if self.plan.by_urgency else len(pieces)
        for _ in range(number):
            piece = pieces.pop(0)
            piece.ready = self.ready(piece.step, piece.exchange)
            piece.stage_end = self.clock + self.network.latency
            self.starting.append(piece)
        return True

    def end_latency(self) -> bool:
        if not self.starting or self.starting[0].stage_end > self.clock:
            return False
        self.push_queue.append(self.starting.pop(0))
        return True

    def begin_push(self) -> bool:
        if self.pushing or not self.push_queue:
            return False
        piece = self.push_queue.pop(0)
        piece.begin = self.clock
        seconds = self.network.fixed + piece.num_bytes * self.network.seconds_per_byte
        piece.stage_end = self.clock + seconds
        self.pushing.append(piece)
        return True

    def end_push(self) -> bool:
        if not self.pushing or self.pushing[0].stage_end > self.clock:
            return False
        self.pull_queue.append(self.pushing.pop(0))
        return True

    def begin_pull(self) -> bool:
        if self.pulling or not self.pull_queue:
            return False
        piece = self.pull_queue.pop(0)
        piece.stage_end = self.clock + piece.num_bytes * self.network.pull_seconds_per_byte
        self.pulling.append(piece)
        return True

    def end_pull(self) -> bool:
        if not self.pulling or self.pulling[0].stage_end > self.clock:
            return False
        piece = self.pulling.pop(0)
        self.exchanges.append(
            (piece.step, piece.exchange.name, piece.num_bytes, piece.ready, piece.begin, self.clock)
        )
        self.last_arrival = self.clock
        copies = 0
        if len(piece.exchange.weights) > 1:
            copies = 2
        elif piece.exchange.parts > 1:
            copies = 1
        per_byte = piece.num_bytes * self.network.cpu_seconds_per_byte
        per_byte += piece.num_bytes * copies * self.network.cpu_seconds_per_copied_byte
        cpu_seconds = self.network.cpu_seconds_per_exchange + per_byte
        free = min(cpu_seconds, self.idle_seconds)
        self.idle_seconds -= free
        self.to_deal_with.append(Job(piece.step, "", "cpu", cpu_seconds - free))
        if piece.is_last:
            self.arrived.add((piece.step, piece.exchange.name))
        for name in piece.exchange.weights if piece.is_last else ():
            key = (piece.step, name)
            self.parts_arrived[key] = self.parts_arrived.get(key, 0) + 1
            if self.parts_arrived[key] == piece.exchange.parts:
                self.update(piece.step, name)
        return True
