"""Candidates take turns, and the fastest stays: with a clock that the candidates turn."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.engines.local import LocalEngine
from ooodist.training import trial
from ooodist.training.trial import GAIN, LAUNCHES, ROUNDS, Candidate, Trial

STEPS = 4


class Clock:
    """Candidates whose launches take as long as they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.ran: list[str] = []
        monkeypatch.setattr(trial.time, "perf_counter", lambda: self.now)

    def candidate(self, name: str, *seconds: float, predicted: float | None = None) -> Candidate:
        """Its launches take so many seconds, then again; the first one much longer."""
        launches = 0

        def run(batches: Sequence[Any]) -> dict[str, tf.Tensor]:
            nonlocal launches
            self.now += seconds[launches % len(seconds)] + (1000 if not launches else 0)
            launches += 1
            self.ran.append(name)
            return {"loss": tf.constant(float(len(batches)))}

        return Candidate(name, run, predicted)


def run(candidates: Sequence[Candidate], launches: int) -> tuple[Trial, list[str]]:
    decided: list[str] = []
    made = Trial(LocalEngine(), candidates, STEPS, decided.append)
    for _ in range(launches):
        assert made([1] * STEPS)["loss"] == STEPS
    return made, decided


def whole(candidates: Sequence[Candidate]) -> int:
    return LAUNCHES * ROUNDS * len(candidates)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_they_take_turns_and_then_the_fastest_runs(clock: Clock) -> None:
    candidates = [clock.candidate("default", 2.0), clock.candidate("planned", 1.0)]
    made, decided = run(candidates, whole(candidates) + 3)
    turn = ["default"] * LAUNCHES + ["planned"] * LAUNCHES
    assert clock.ran == turn * ROUNDS + ["planned"] * 3
    assert decided == ["planned"]
    assert made.fastest is candidates[1]


def test_what_is_slower_does_not_stay(clock: Clock) -> None:
    candidates = [clock.candidate("default", 1.0), clock.candidate("planned", 1.2)]
    made, decided = run(candidates, whole(candidates) + 2)
    assert clock.ran[-2:] == ["default"] * 2
    assert decided == ["default"]
    assert made.fastest is candidates[0]


def test_nothing_is_decided_before_all_have_had_their_turns(clock: Clock) -> None:
    candidates = [clock.candidate("default", 2.0), clock.candidate("planned", 1.0)]
    made, decided = run(candidates, whole(candidates) - 1)
    assert decided == []
    assert made.fastest is candidates[0]


@pytest.mark.parametrize(("share", "stays"), [(1 - GAIN / 2, "default"), (1 - 2 * GAIN, "planned")])
def test_the_default_stays_unless_another_is_worth_it(
    clock: Clock, share: float, stays: str
) -> None:
    candidates = [clock.candidate("default", 1.0), clock.candidate("planned", share)]
    assert run(candidates, whole(candidates))[1] == [stays]


def test_launches_that_are_slow_for_once_do_not_count(clock: Clock) -> None:
    planned = clock.candidate("planned", 1.0, 1.0, 1.0, 9.0)
    candidates = [clock.candidate("default", 1.5), planned]
    assert run(candidates, whole(candidates))[1] == ["planned"]


def test_the_log_says_what_was_predicted_and_measured(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    candidates = [clock.candidate("default", 2.0), clock.candidate("planned", 1.0, predicted=0.2)]
    run(candidates, whole(candidates))
    assert (
        "tried in training: default 500.0 ms a step, planned 250.0 ms a step (predicted 200.0); "
        "planned stays"
    ) in caplog.text


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=4))
def test_what_stays_is_never_slower_than_the_default(seconds: list[float]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Clock(monkeypatch)
        candidates = [clock.candidate(str(i), each) for i, each in enumerate(seconds)]
        made, _ = run(candidates, whole(candidates))
    stays = seconds[candidates.index(made.fastest)]
    assert stays <= seconds[0]
    assert stays <= min(seconds) / (1 - GAIN) * (1 + 1e-9)


class Slowest(LocalEngine):
    """This rank measured this; another rank is slower with some of them."""

    others = np.array([1.0, 3.0]) / STEPS

    def all_reduce(self, array: np.ndarray, operation: str = "sum") -> np.ndarray:  # type: ignore[override]
        assert operation == "max"
        return np.maximum(array, self.others)


def test_the_slowest_rank_counts(clock: Clock) -> None:
    candidates = [clock.candidate("default", 2.0), clock.candidate("planned", 1.0)]
    decided: list[str] = []
    made = Trial(Slowest(), candidates, STEPS, decided.append)
    for _ in range(whole(candidates)):
        made([1] * STEPS)
    assert decided == ["default"]
