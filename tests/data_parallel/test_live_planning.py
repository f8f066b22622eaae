"""When plans are made while training, and what comes of it: with a clock that training turns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ooodist.data_parallel import live_planning
from ooodist.data_parallel.live_planning import (
    CHECK_SECONDS,
    NETWORK_SECONDS,
    SHARE_OF_WAITING,
    LivePlanning,
)
from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.planner.correction import Observed, correct
from ooodist.planner.costs import Network, StepCosts
from ooodist.planner.data_parallel.named import default_plan
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.search import Limits, make_plan
from ooodist.planner.data_parallel.search_process import Found
from ooodist.planner.data_parallel.simulate import Simulator
from ooodist.profiler.conditions import Conditions, Machine
from ooodist.profiler.folder import Profile
from ooodist.trainer import trial
from ooodist.trainer.drift import DRIFT, WINDOW_CALLS
from ooodist.trainer.live import MOST_SEARCHES, POLL_CALLS, TIMED_CALLS, WARM_UP_CALLS
from ooodist.trainer.trial import Candidate
from tests.planner.chains import chain_costs

COSTS = chain_costs([1 << 20] * 3, forward=0.2, output_gradient=0.2, weight_gradient=0.2)
NETWORK = Network("horovod", 2, latency=1e-3, fixed=1e-3, seconds_per_byte=1e-7)
CONDITIONS = Conditions(
    "made up", (), 1, "float32", "SGD", "local", 1, Machine("", (), 2, None), versions={}
)
PROFILE = Profile("made up", "", "", CONDITIONS, NETWORK, COSTS)
FIRST = 5.0  # seconds of the first call, with its tracing
TRACED_STEPS = 2  # of a plan
BEGUN = WARM_UP_CALLS + TIMED_CALLS  # calls, before planning is considered at all
SEARCHED = TIMED_CALLS + 2 * POLL_CALLS  # from the measuring to the end of the first search
TRIED = trial.ROUNDS * trial.LAUNCHES  # launches of a candidate, at most
DEFAULT = default_plan(COSTS, NETWORK)
DEFAULT_SECONDS = Simulator(COSTS, NETWORK).step_seconds(DEFAULT)


class MadeUpJob:
    """Trains by turning a clock; what each candidate takes may be changed at any time."""

    def __init__(self, left: int | None, *, planned: float = 0.5) -> None:
        self.is_trying = False
        self.now = 0.0
        self.seconds = {"default": 1.0, "planned": planned}  # a batch
        self.steps: dict[str, int] = {}
        self.left = left
        self.kept, self.network_kept = True, False
        self.only_exposed = False
        self.compiled: Candidate | None = None
        self.error: UserError | None = None
        self.profiled = 0
        self.step_seconds = 0.0
        self.trials: list[int] = []
        self.settled: list[str] = []
        self.ran: list[str] = []

    def way(
        self,
        name: str,
        steps: int = 1,
        plan: Plan | None = None,
        predicted: float | None = None,
    ) -> Candidate:
        self.steps[name] = steps

        def run(batches: Sequence[Any]) -> dict[str, float]:
            self.now += FIRST if not self.ran else self.seconds[name] * len(batches)
            self.ran.append(name)
            if self.left is not None:
                self.left -= len(batches)
            return {"loss": float(len(batches))}

        return Candidate(name, run, steps, plan, predicted)  # type: ignore[arg-type]

    def is_profile_kept(self) -> bool:
        return self.kept

    def is_network_kept(self) -> bool:
        return self.network_kept

    def profile(self, batch: Any, *, step_seconds: float) -> Profile:
        self.profiled += 1
        self.step_seconds = step_seconds
        if self.error is not None:
            raise self.error
        return PROFILE

    def limits(self) -> Limits:
        wire: Any = {"wire": "float16", "only_exposed": True} if self.only_exposed else {}
        return Limits(steps_per_execution=2, evaluations=50, **wire)

    def candidate(self, plan: Plan, costs: StepCosts, network: Network) -> Candidate:
        assert plan.model == "made up"
        assert plan.predicted is not None
        seconds = Simulator(costs, network).step_seconds(plan)
        assert seconds == pytest.approx(plan.predicted.step_seconds)
        self.seconds.setdefault(plan.name, 2.0)
        return self.way(plan.name, plan.steps_per_execution, plan, seconds)

    def begin_trial(self, steps: int) -> None:
        self.trials.append(steps)

    def settle(self, candidate: Candidate) -> None:
        self.settled.append(candidate.name)

    def compiled_candidate(self) -> Candidate | None:
        return self.compiled


class MadeUpSearch:
    """Is done when it was asked for the second time."""

    found: Callable[[Any], tuple[Plan, ...]]
    running = 0

    def __init__(self, request: Any) -> None:
        self._request, self._asked = request, 0
        MadeUpSearch.running += 1

    def is_done(self) -> bool:
        self._asked += 1
        return self._asked == 2

    def answer(self) -> Found:
        return Found(MadeUpSearch.found(self._request))

    def close(self) -> None:
        MadeUpSearch.running -= 1


@pytest.fixture(autouse=True)
def _search(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def found(request: Any) -> tuple[Plan, ...]:
        return (make_plan(request.costs, request.network, limits=request.limits),)

    monkeypatch.setattr(MadeUpSearch, "found", staticmethod(found), raising=False)
    monkeypatch.setattr(MadeUpSearch, "running", 0)
    monkeypatch.setattr(live_planning, "SearchProcess", MadeUpSearch)
    yield
    assert MadeUpSearch.running == 0


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LivePlanning]]:
    live: list[LivePlanning] = []

    def begin(job: MadeUpJob, share: float = 0.02, **options: Any) -> LivePlanning:
        for module in (live_planning, trial):
            monkeypatch.setattr(module.time, "perf_counter", lambda: job.now)
        live.append(
            LivePlanning(
                LocalEngine(), job, job.way("default"), accumulate=1, share=share, **options
            )
        )
        return live[-1]

    yield begin
    for each in live:
        each.close()


def train(live: LivePlanning, calls: int, batches: int = 1) -> None:
    for _ in range(calls):
        assert live([0] * batches)["loss"] == batches


def train_as_fit_does(live: LivePlanning, job: MadeUpJob, calls: int) -> None:
    """With as many batches a call as launches have, once a trial has begun."""
    for _ in range(calls):
        train(live, 1, job.trials[-1] if job.trials else 1)


def test_the_first_calls_are_the_defaults(begun: Callable[..., LivePlanning]) -> None:
    job = MadeUpJob(left=100_000)
    train(begun(job), BEGUN - 1)
    assert job.is_trying
    assert job.profiled == 0
    assert set(job.ran) == {"default"}


def test_a_long_training_is_planned_for(begun: Callable[..., LivePlanning]) -> None:
    job = MadeUpJob(left=100_000)
    live = begun(job)
    train_as_fit_does(live, job, BEGUN)
    assert job.profiled == 1
    assert job.step_seconds == pytest.approx(job.seconds["default"])
    train_as_fit_does(live, job, SEARCHED)
    assert job.trials == [job.steps["planned"]]
    assert not job.settled
    train_as_fit_does(live, job, 2 * TRIED)
    assert job.settled[0] == "planned"
    train_as_fit_does(live, job, 1000)
    assert not job.is_trying
    assert set(job.settled) == {"planned"}
    assert job.ran[-3:] == ["planned"] * 3


def test_what_xla_compiles_is_tried_beside_the_first_plans(
    begun: Callable[..., LivePlanning],
) -> None:
    job = MadeUpJob(left=100_000)
    job.seconds["compiled"] = 0.1 * DEFAULT_SECONDS
    job.compiled = job.way("compiled")
    train_as_fit_does(begun(job), job, BEGUN + SEARCHED + 3 * TRIED + 1000)
    assert {"default", "planned", "compiled"} <= set(job.ran)
    assert set(job.settled) == {"compiled"}
    assert job.ran[-3:] == ["compiled"] * 3


def test_what_the_log_says(
    begun: Callable[..., LivePlanning], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    job = MadeUpJob(left=100_000)
    job.seconds["default"] = 1.3 * DEFAULT_SECONDS
    corrected = correct(COSTS, NETWORK, [Observed(DEFAULT, job.seconds["default"])])
    costs, network = corrected.costs(COSTS), corrected.network(NETWORK)
    plan = make_plan(costs, network, limits=job.limits())
    assert plan.predicted is not None
    job.seconds["planned"] = plan.predicted.step_seconds
    live = begun(job)
    train_as_fit_does(live, job, BEGUN + SEARCHED + 2 * TRIED)
    default = Simulator(costs, network).step_seconds(DEFAULT)
    planned = plan.predicted.step_seconds
    assert default == pytest.approx(job.seconds["default"], rel=0.02)  # no surprise in the trial
    assert [record.getMessage() for record in caplog.records] == [
        "planned: measured in 0.0 s",
        "planned: searching beside the training; as its steps say, computing takes "
        f"{corrected.compute:.2f} times as long as was measured, exchanges "
        f"{corrected.exchange:.2f} times, and a call's start and end "
        f"{corrected.compute * corrected.call:.2f} times",
        f"tried in training: default {job.seconds['default'] * 1e3:.1f} ms a step (predicted "
        f"{default * 1e3:.1f}), planned {planned * 1e3:.1f} ms a step (predicted "
        f"{planned * 1e3:.1f}); planned stays",
    ]


def test_what_is_slower_is_not_taken_over(begun: Callable[..., LivePlanning]) -> None:
    job = MadeUpJob(left=100_000, planned=1.5)
    live = begun(job)
    train_as_fit_does(live, job, BEGUN + SEARCHED + 2 * TRIED)
    assert job.settled[0] == "default"
    assert job.ran[-1] == "default"


def only_asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What searches are asked, which all fail then."""
    asked: list[Any] = []

    def found(request: Any) -> tuple[Plan, ...]:
        asked.append(request)
        raise UserError("enough")

    monkeypatch.setattr(MadeUpSearch, "found", staticmethod(found))
    return asked


def test_the_search_gets_what_steps_have_corrected(
    begun: Callable[..., LivePlanning], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = only_asked(monkeypatch)
    job = MadeUpJob(left=100_000)
    job.seconds["default"] = 2 * DEFAULT_SECONDS
    train_as_fit_does(begun(job), job, BEGUN + SEARCHED)
    corrected = correct(COSTS, NETWORK, [Observed(DEFAULT, 2 * DEFAULT_SECONDS)])
    expected = corrected.costs(COSTS).compute_seconds
    assert asked[0].costs.compute_seconds == pytest.approx(expected)
    assert asked[0].network.fixed == pytest.approx(corrected.network(NETWORK).fixed)


def test_it_searches_again_while_steps_are_not_as_predicted(
    begun: Callable[..., LivePlanning],
) -> None:
    """And tries what is found with what the trial has taught, if that may be faster."""
    job = MadeUpJob(left=100_000)
    job.seconds["default"] = DEFAULT_SECONDS
    job.seconds["planned"] = 0.7 * DEFAULT_SECONDS
    live = begun(job)
    for _ in range(MOST_SEARCHES * (SEARCHED + 3 * TRIED)):
        train_as_fit_does(live, job, 1)
    assert job.settled[0] == "planned"
    assert live._searches > 1
    assert live._searches <= MOST_SEARCHES
    assert not job.is_trying


def test_steps_as_predicted_are_the_end_of_it(begun: Callable[..., LivePlanning]) -> None:
    job = MadeUpJob(left=100_000)
    plan = make_plan(COSTS, NETWORK, limits=job.limits())
    assert plan.predicted is not None
    job.seconds["default"] = DEFAULT_SECONDS
    job.seconds["planned"] = plan.predicted.step_seconds
    live = begun(job)
    train_as_fit_does(live, job, BEGUN + 4 * SEARCHED + 2 * TRIED)
    assert live._searches == 1
    assert job.settled == ["planned"]


@pytest.mark.parametrize(
    ("kept", "network"),
    [(True, CHECK_SECONDS), (False, CHECK_SECONDS), (False, NETWORK_SECONDS)],
    ids=["profile kept", "network kept", "no profile"],
)
def test_a_training_is_planned_for_from_so_many_batches_on(
    begun: Callable[..., LivePlanning], kept: bool, network: float
) -> None:
    """As planning takes so many seconds, which may be a share of 2 % of it."""
    seconds = TRACED_STEPS * FIRST + network
    if not kept:
        seconds += FIRST + live_planning.MEASURED_STEPS
    enough = round(seconds / 0.02) + BEGUN
    for left, is_planned in ((enough, True), (enough - 1, False)):
        job = MadeUpJob(left)
        job.kept, job.network_kept = kept, network == CHECK_SECONDS
        train(begun(job), BEGUN)
        assert job.profiled == is_planned


@pytest.mark.parametrize(("traced", "tried"), [(3, 1), (4, 2), (5, 2), (6, 3), (100, 3)])
def test_as_many_plans_are_traced_as_their_share_of_the_time_allows(
    begun: Callable[..., LivePlanning],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    traced: int,
    tried: int,
) -> None:
    """Each plan has two steps a call; measuring takes no time here."""
    caplog.set_level(logging.INFO, "ooodist")

    def found(request: Any) -> tuple[Plan, ...]:
        plan = make_plan(request.costs, request.network, limits=request.limits)
        return tuple(replace(plan, name=name) for name in ("planned", "second", "third"))

    monkeypatch.setattr(MadeUpSearch, "found", staticmethod(found))
    job = MadeUpJob(left=round(traced * FIRST / 0.02) + BEGUN)
    train_as_fit_does(begun(job), job, BEGUN + SEARCHED + 8 * TRIED)
    assert len(set(job.ran)) == 1 + tried
    assert (f"{tried} of 3 plans are tried" in caplog.text) == (tried < 3)


@pytest.mark.parametrize(("left", "evaluations"), [(600, 12_000), (10**5, 20_000)])
def test_the_search_for_a_short_training_is_short(
    begun: Callable[..., LivePlanning],
    monkeypatch: pytest.MonkeyPatch,
    left: int,
    evaluations: int,
) -> None:
    """A second of 50 is for planning, and for each of these the search has 1,000 plans."""
    asked = only_asked(monkeypatch)
    monkeypatch.setattr(MadeUpJob, "limits", lambda _: Limits(steps_per_execution=2))
    job = MadeUpJob(left=left + BEGUN)
    train_as_fit_does(begun(job), job, BEGUN + SEARCHED)
    assert asked[0].limits.evaluations == evaluations


def test_nothing_else_is_searched_for_when_its_share_of_the_time_is_used_up(
    begun: Callable[..., LivePlanning],
) -> None:
    """Steps are not as predicted: with time left, it would search again."""
    seconds = TRACED_STEPS * FIRST + CHECK_SECONDS
    job = MadeUpJob(left=round(seconds / 0.02 / DEFAULT_SECONDS) + 1 + BEGUN)
    job.seconds["default"] = DEFAULT_SECONDS
    job.seconds["planned"] = 0.7 * DEFAULT_SECONDS
    live = begun(job)
    train_as_fit_does(live, job, BEGUN + 3 * (SEARCHED + 3 * TRIED))
    assert job.settled == ["planned"]
    assert live._searches == 1


@pytest.mark.parametrize("only_exposed", [False, True])
def test_time_that_fewer_bytes_may_save_allows_more_of_it_for_planning(
    begun: Callable[..., LivePlanning], only_exposed: bool
) -> None:
    """The processors do nothing in these steps: all of them is waiting."""
    left = int((TRACED_STEPS * FIRST + CHECK_SECONDS) / SHARE_OF_WAITING)
    job = MadeUpJob(left=left)
    job.only_exposed = only_exposed
    train(begun(job), BEGUN)
    assert job.profiled == only_exposed
    assert job.is_trying == only_exposed


def test_what_is_too_short_trains_by_default_to_its_end(
    begun: Callable[..., LivePlanning], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    job = MadeUpJob(left=300)
    train(begun(job), 300)
    assert job.profiled == 0
    assert job.ran == ["default"] * 300
    assert not job.is_trying
    seconds = TRACED_STEPS * FIRST + CHECK_SECONDS
    assert f"as planning would take about {seconds:.0f} s, and may take 6 s" in caplog.text
    assert "(planning.share)" in caplog.text
    assert len(caplog.records) == 1


def test_with_no_end_in_sight_what_was_trained_so_far_counts(
    begun: Callable[..., LivePlanning],
) -> None:
    job = MadeUpJob(left=None)
    live = begun(job)
    needed = (TRACED_STEPS * FIRST + CHECK_SECONDS) / 0.02
    while not job.profiled:
        train(live, 1)
        assert len(job.ran) < 2 * needed + POLL_CALLS
    assert len(job.ran) >= needed - FIRST


def test_a_share_of_nothing_is_no_planning(begun: Callable[..., LivePlanning]) -> None:
    job = MadeUpJob(left=10**9)
    train(begun(job, share=0.0), 1000)
    assert job.profiled == 0


def test_what_cannot_be_measured_trains_by_default(
    begun: Callable[..., LivePlanning], caplog: pytest.LogCaptureFixture
) -> None:
    job = MadeUpJob(left=100_000)
    job.error = UserError("no step")
    train(begun(job), 1000)
    assert job.profiled == 1
    assert set(job.ran) == {"default"}
    assert not job.is_trying
    assert "nothing can be planned, so the default stays: no step" in caplog.text


def test_a_search_that_fails_leaves_the_default(
    begun: Callable[..., LivePlanning],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(request: Any) -> tuple[Plan, ...]:
        raise UserError("killed")

    monkeypatch.setattr(MadeUpSearch, "found", staticmethod(fails))
    job = MadeUpJob(left=100_000)
    train(begun(job), 1000)
    assert set(job.ran) == {"default"}
    assert not job.is_trying
    assert "the search failed, so default stays: killed" in caplog.text


def test_batches_that_fill_no_launch_are_the_defaults(begun: Callable[..., LivePlanning]) -> None:
    job = MadeUpJob(left=100_000)
    live = begun(job, candidates=[job.way("planned", 2)])
    assert job.trials == [2]
    train(live, 30, batches=1)  # the last ones of epochs
    assert job.ran == ["default"] * 30
    train(live, 2 * TRIED, batches=2)
    assert job.settled == ["planned"]
    assert job.profiled == 0


@pytest.mark.parametrize(("factor", "again"), [(1 + DRIFT / 2, False), (1 + 2 * DRIFT, True)])
def test_plans_are_tried_again_when_steps_take_another_time(
    begun: Callable[..., LivePlanning], factor: float, again: bool
) -> None:
    job = MadeUpJob(left=100_000)
    live = begun(job, candidates=[job.way("planned")])
    train(live, 2 * TRIED)
    assert job.settled == ["planned"]
    train(live, 2 * WINDOW_CALLS)
    job.seconds["planned"] *= factor
    job.seconds["default"] = 0.2
    train(live, 4 * WINDOW_CALLS)
    assert len(job.trials) == 1 + again
    assert job.settled == ["planned", "default"][: 1 + again]


def test_steps_are_watched_while_a_search_is_under_way(
    begun: Callable[..., LivePlanning], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside busy workers a search may take minutes; it is given up when all is tried again."""
    job = MadeUpJob(left=100_000)
    job.seconds["default"] = DEFAULT_SECONDS
    job.seconds["planned"] = 0.7 * DEFAULT_SECONDS
    live = begun(job)
    while not job.settled:
        train_as_fit_does(live, job, 1)
    assert MadeUpSearch.running == 1
    monkeypatch.setattr(MadeUpSearch, "is_done", lambda self: False)
    train_as_fit_does(live, job, 2 * WINDOW_CALLS)
    assert len(job.trials) == 1
    for name in job.seconds:
        job.seconds[name] *= 1 + 2 * DRIFT
    train_as_fit_does(live, job, 3 * WINDOW_CALLS)
    assert len(job.trials) == len(job.settled) == 2
    assert MadeUpSearch.running == 1  # a new one, as steps have surprised again


def test_what_comes_and_goes_is_followed_more_and_more_seldom(
    begun: Callable[..., LivePlanning],
) -> None:
    job = MadeUpJob(left=10**9)
    live = begun(job, candidates=[job.way("planned")])
    for window in range(400):
        if window % 8 == 0:
            for name in job.seconds:
                job.seconds[name] *= 3 if window % 16 == 0 else 1 / 3
        train(live, WINDOW_CALLS)
    assert 2 <= len(job.trials) <= 4
