"""When schedules are tried while training, and what comes of it; training turns the clock."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.pipeline import live_schedule
from ooodist.pipeline.live_schedule import (
    MEASURED_STEPS,
    PLANNING_STEPS,
    TIMED_STEPS,
    WARM_UP_STEPS,
    LiveSchedule,
)
from ooodist.planner.pipeline.actions import Schedule, to_csv
from ooodist.planner.pipeline.costs import PipelineCosts, equal_stages
from ooodist.planner.pipeline.named.schedules import (
    gpipe,
    one_forward_one_backward,
    zero_bubble_h1,
    zero_bubble_h2,
)
from ooodist.planner.pipeline.plan import PipelinePlan
from ooodist.planner.pipeline.search_process import FoundSchedules, NamedCsv, ScheduleRequest
from ooodist.trainer import drift, trial
from ooodist.trainer.drift import DRIFT, DRIFTED_WINDOWS, WINDOW_CALLS
from ooodist.trainer.live import MOST_SEARCHES, POLL_CALLS

COSTS = equal_stages(2)
MEASURED = equal_stages(2, 2.0, 2.0, 2.0)
FIRST, H1, SLOW = one_forward_one_backward(2, 4), zero_bubble_h1(2, 4), gpipe(2, 4)
PLAN = PipelinePlan((range(1), range(1, 2)), FIRST, COSTS)
BESIDES = 0.5  # seconds of a step
MEASURED_AT = WARM_UP_STEPS + TIMED_STEPS  # steps, before stages are measured
SEARCHED_AT = MEASURED_AT + MEASURED_STEPS + 2 * POLL_CALLS  # the end of the first search
TRIED = trial.ROUNDS * trial.LAUNCHES  # steps of a candidate, at most
LONG = round(PLANNING_STEPS / 0.02)


class MadeUpJob:
    """Trains by turning a clock; what steps take may be changed at any time."""

    def __init__(self, left: int | None) -> None:
        self.is_trying = False
        self.left = left
        self.now = 0.0
        self.costs = MEASURED
        self.factor: dict[str, float] = {}  # by which a schedule is slower than simulated
        self.unlike: set[str] = set()  # schedules that compute other numbers
        self.plan = PLAN
        self.is_measured = False
        self.measured = 0
        self.waits = False  # whether ranks wait for each other at the end of a step
        self.ran: list[str] = []
        self._simulated: dict[Any, float] = {}

    def seconds(self, schedule: Schedule) -> float:
        key = schedule.actions, self.costs
        if key not in self._simulated:
            plan = replace(self.plan, schedule=schedule, costs=self.costs)
            self._simulated[key] = self.predicted(plan)
        return (self._simulated[key] + BESIDES) * self.factor.get(schedule.name, 1.0)

    def train(self, batches: Sequence[Any]) -> dict[str, float]:
        self.now += self.seconds(self.plan.schedule)
        self.ran.append(("measured " if self.is_measured else "") + self.plan.schedule.name)
        if self.left is not None:
            self.left -= 1
        return {"loss": float(len(batches))}

    def carry_out(self, plan: PipelinePlan, *, is_measured: bool = False) -> None:
        self.plan, self.is_measured = plan, is_measured

    def measured_in_steps(self) -> PipelineCosts:
        assert self.is_measured
        self.measured += 1
        return self.costs

    def predicted(self, plan: PipelinePlan) -> float:
        return plan.timeline.step_seconds if self.waits else plan.period

    def computes_alike(self, one: Schedule, other: Schedule) -> bool:
        return one.name not in self.unlike

    def left_to_train(self) -> int | None:
        return self.left


class MadeUpSearch:
    """Is done when it was asked for the second time."""

    found: tuple[Schedule, ...] = ()
    requests: list[ScheduleRequest]
    error: str | None = None
    running = 0

    def __init__(self, request: ScheduleRequest) -> None:
        self._asked = 0
        MadeUpSearch.requests.append(request)
        MadeUpSearch.running += 1

    def is_done(self) -> bool:
        self._asked += 1
        return self._asked == 2

    def answer(self) -> FoundSchedules:
        if MadeUpSearch.error:
            raise UserError(MadeUpSearch.error)
        return FoundSchedules(tuple(NamedCsv(s.name, to_csv(s)) for s in MadeUpSearch.found))

    def close(self) -> None:
        MadeUpSearch.running -= 1


@pytest.fixture(autouse=True)
def _search(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(MadeUpSearch, "found", (H1,))
    monkeypatch.setattr(MadeUpSearch, "requests", [], raising=False)
    monkeypatch.setattr(MadeUpSearch, "error", None)
    monkeypatch.setattr(live_schedule, "ScheduleSearch", MadeUpSearch)
    yield
    assert MadeUpSearch.running == 0


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LiveSchedule]]:
    live: list[LiveSchedule] = []

    def begin(job: MadeUpJob, share: float = 0.02) -> LiveSchedule:
        for module in (trial, drift):
            monkeypatch.setattr(module.time, "perf_counter", lambda: job.now)
        live.append(LiveSchedule(LocalEngine(), job, job, share=share))
        return live[-1]

    yield begin
    for each in live:
        each.close()


def train(live: LiveSchedule, steps: int) -> None:
    for _ in range(steps):
        assert live([0]) == {"loss": 1.0}


def test_the_first_steps_are_of_the_best_known(begun: Callable[..., LiveSchedule]) -> None:
    job = MadeUpJob(LONG)
    train(begun(job), MEASURED_AT + MEASURED_STEPS - 1)
    assert job.is_trying
    assert not MadeUpSearch.requests
    assert job.ran == ["1f1b"] * MEASURED_AT + ["measured 1f1b"] * (MEASURED_STEPS - 1)


def test_what_is_found_takes_turns_and_the_fastest_stays(
    begun: Callable[..., LiveSchedule],
) -> None:
    job = MadeUpJob(LONG)
    live = begun(job)
    train(live, SEARCHED_AT)
    assert MadeUpSearch.requests == [ScheduleRequest((0, 1), 4, MEASURED)]
    assert set(job.ran[MEASURED_AT + MEASURED_STEPS :]) == {"1f1b"}
    train(live, 2 * TRIED)
    assert not job.is_trying
    assert live.plan.schedule.actions == H1.actions
    assert live.plan.costs == MEASURED
    assert {"1f1b", "zb_h1"} == set(job.ran[SEARCHED_AT:])
    train(live, 100)
    assert job.ran[-100:] == ["zb_h1"] * 100
    assert job.measured == 1


def test_what_the_log_says(
    begun: Callable[..., LiveSchedule], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    job = MadeUpJob(LONG)
    first, h1 = (job.seconds(schedule) * 1e3 for schedule in (FIRST, H1))
    train(begun(job), SEARCHED_AT + 2 * TRIED)
    assert [record.getMessage() for record in caplog.records] == [
        f"pipeline: searching a schedule beside the training; a step takes {first:.1f} ms with "
        f"1f1b, as its actions say {first - 500:.1f} ms, and 500.0 ms besides",
        f"tried in training: 1f1b {first:.1f} ms a step (predicted {first:.1f}), zb_h1 {h1:.1f} ms "
        f"a step (predicted {h1:.1f}); zb_h1 stays",
    ]


@pytest.mark.parametrize("waits", [False, True])
def test_steps_are_predicted_as_the_job_says(
    begun: Callable[..., LiveSchedule],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    waits: bool,
) -> None:
    """So that what took turns is as predicted, and stages are not measured again."""
    h2 = zero_bubble_h2(2, 4)
    plan = PipelinePlan(PLAN.parts, h2, MEASURED)
    assert plan.period < 0.97 * plan.timeline.step_seconds
    monkeypatch.setattr(MadeUpSearch, "found", (h2,))
    caplog.set_level(logging.INFO, "ooodist")
    job = MadeUpJob(LONG)
    job.waits = waits
    train(begun(job), SEARCHED_AT + 2 * TRIED)
    expected = (plan.timeline.step_seconds if waits else plan.period) + BESIDES
    assert f"zb_h2 {expected * 1e3:.1f} ms a step (predicted {expected * 1e3:.1f})" in caplog.text
    assert job.measured == 1


def test_what_is_slower_in_earnest_is_not_taken_over(begun: Callable[..., LiveSchedule]) -> None:
    job = MadeUpJob(LONG)
    job.factor["zb_h1"] = 1.5
    live = begun(job)
    train(live, SEARCHED_AT + 2 * TRIED)
    assert live.plan.schedule.name == "1f1b"
    assert "zb_h1" in job.ran


@pytest.mark.parametrize("why", ["computes other numbers", "is known", "is slower"])
def test_what_is_not_worth_a_trial(
    begun: Callable[..., LiveSchedule], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    job = MadeUpJob(LONG)
    if why == "computes other numbers":
        job.unlike.add("zb_h1")
    elif why == "is known":
        monkeypatch.setattr(MadeUpSearch, "found", (FIRST,))
    else:
        monkeypatch.setattr(MadeUpSearch, "found", (replace(SLOW, name="slow"),))
        job.costs = equal_stages(2, 1.0, 0.1, 0.1)
        slow = PipelinePlan(PLAN.parts, SLOW, job.costs).timeline.step_seconds
        assert slow >= replace(PLAN, costs=job.costs).timeline.step_seconds
        monkeypatch.setattr(live_schedule, "NEARLY", -0.01)
    train(begun(job), SEARCHED_AT + 10)
    assert not job.is_trying
    assert set(job.ran) == {"1f1b", "measured 1f1b"}


def test_it_searches_again_while_steps_are_not_as_predicted(
    begun: Callable[..., LiveSchedule],
) -> None:
    job = MadeUpJob(10**6)
    job.factor["zb_h1"] = 0.8
    live = begun(job)
    train(live, MOST_SEARCHES * (SEARCHED_AT + 2 * TRIED))
    assert live.plan.schedule.name == "zb_h1"
    assert job.measured == len(MadeUpSearch.requests) == 2  # then it is as it was
    assert not job.is_trying


def test_later_only_what_should_be_faster_is_tried(
    begun: Callable[..., LiveSchedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, (*others, one, two) = H1.actions  # the last two are W
    as_fast = replace(H1, name="as_fast", actions=(first, (*others, two, one)))
    job = MadeUpJob(10**6)
    job.factor["zb_h1"] = 0.8  # not as predicted: it searches again
    live = begun(job)
    train(live, SEARCHED_AT)
    monkeypatch.setattr(MadeUpSearch, "found", (as_fast,))
    train(live, SEARCHED_AT + 2 * TRIED)
    assert len(MadeUpSearch.requests) == 2
    assert job.seconds(as_fast) == job.seconds(replace(H1, name="other"))
    assert set(job.ran) == {"1f1b", "measured 1f1b", "zb_h1", "measured zb_h1"}
    assert not job.is_trying


@pytest.mark.parametrize(("left", "is_tried"), [(LONG, True), (LONG - 1, False)])
def test_a_training_is_planned_for_from_so_many_steps_on(
    begun: Callable[..., LiveSchedule],
    caplog: pytest.LogCaptureFixture,
    left: int,
    is_tried: bool,
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    job = MadeUpJob(left)
    live = begun(job)
    train(live, 1)
    assert job.is_trying == is_tried
    train(live, left - 1)
    assert len(MadeUpSearch.requests) == is_tried
    if not is_tried:
        assert len(caplog.records) == 1
        assert f"(planning.share) of the training's {left}" in caplog.text


def test_with_no_end_in_sight_what_was_trained_so_far_counts(
    begun: Callable[..., LiveSchedule],
) -> None:
    job = MadeUpJob(None)
    live = begun(job)
    train(live, 511)  # decided after 16, 32, 64, ... steps
    assert not job.is_trying
    train(live, 1)
    assert job.is_trying


def test_a_share_of_nothing_is_no_trial(begun: Callable[..., LiveSchedule]) -> None:
    job = MadeUpJob(10**9)
    train(begun(job, share=0.0), 1000)
    assert set(job.ran) == {"1f1b"}


def test_a_search_that_fails_leaves_the_schedule(
    begun: Callable[..., LiveSchedule],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(MadeUpSearch, "error", "killed")
    job = MadeUpJob(10**6)
    train(begun(job), 1000)
    assert set(job.ran) == {"1f1b", "measured 1f1b"}
    assert not job.is_trying
    assert "the search failed, so 1f1b stays: killed" in caplog.text


@pytest.mark.parametrize(("factor", "again"), [(1 + DRIFT / 2, False), (1 + 2 * DRIFT, True)])
def test_all_begins_again_when_steps_take_another_time(
    begun: Callable[..., LiveSchedule], factor: float, again: bool
) -> None:
    """And what was tried before is tried again."""
    job = MadeUpJob(10**6)
    live = begun(job)
    train(live, SEARCHED_AT + 2 * TRIED + 2 * WINDOW_CALLS)
    assert live.plan.schedule.name == "zb_h1"
    job.factor["zb_h1"] = factor
    train(live, 2 * (SEARCHED_AT + 2 * TRIED) + 3 * DRIFTED_WINDOWS * WINDOW_CALLS)
    assert live.plan.schedule.name == ("1f1b" if again else "zb_h1")
    assert len(MadeUpSearch.requests) >= 1 + again


def test_what_comes_and_goes_is_followed_more_and_more_seldom(
    begun: Callable[..., LiveSchedule], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    job = MadeUpJob(10**9)
    live = begun(job)
    for window in range(400):
        if window % 8 == 0:
            factor = 3.0 if window % 16 == 0 else 1.0
            job.factor = {"1f1b": factor, "zb_h1": factor}
        train(live, WINDOW_CALLS)
    assert 1 <= caplog.text.count("they are tried again") <= 3
