"""What a search says of how far it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ooodist.planner.costs import Network
from ooodist.planner.data_parallel.named import baseline_plan
from ooodist.planner.data_parallel.search import Limits, comparison, make_plan
from ooodist.planner.progress import SearchState, WatchedSimulator
from tests.planner.chains import chain_costs

COSTS = chain_costs([18] * 6, forward=6)
NETWORK = Network("horovod", 2, seconds_per_byte=1.0)
LIMITS = Limits(max_steps_per_execution=2, evaluations=240)


def test_each_simulated_plan_is_told() -> None:
    states: list[SearchState] = []
    simulator = WatchedSimulator(COSTS, NETWORK, 4, states.append)
    simulator.phase = "these"
    for _ in range(5):
        simulator.step_seconds(baseline_plan(COSTS, NETWORK))
    assert [state.simulated for state in states] == [1, 2, 3, 4, 5]
    assert [state.share for state in states] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert states[0] == SearchState("these", 1, 0.25, math.inf, math.inf)


def test_a_search_tells_its_phases_and_the_best_so_far() -> None:
    states: list[SearchState] = []
    plans = comparison(COSTS, NETWORK, limits=LIMITS, progress=states.append)
    assert list(dict.fromkeys(state.phase for state in states)) == [
        "plans with a name",
        "one setting after the other",
        "random changes",
        "making the best simpler",
    ]
    best = [state.best_seconds for state in states]
    assert best == sorted(best, reverse=True)
    prediction = plans["planned"].predicted
    assert prediction is not None
    assert best[-1] == pytest.approx(prediction.step_seconds, rel=0.002)
    assert states[-1].baseline_seconds == prediction.baseline_seconds
    # Both have their share of the tracing, or neither.
    tracing = replace(COSTS, trace_seconds=1.0)
    limits = replace(LIMITS, total_steps=100)
    comparison(tracing, NETWORK, limits=limits, progress=states.append)
    baseline = states[-1].baseline_seconds
    assert baseline == pytest.approx(prediction.baseline_seconds + 0.01)
    assert states[-1].best_seconds <= baseline
    # What is expected is about what it takes.
    assert 0.4 < states[-1].share <= 1.0


def test_the_plan_is_the_same_whether_somebody_listens() -> None:
    listened = make_plan(COSTS, NETWORK, limits=LIMITS, progress=lambda state: None)
    assert listened == make_plan(COSTS, NETWORK, limits=LIMITS)
