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
from ooodist.trainer import trial
from ooodist.trainer.trial import (
    BEHIND,
    GAIN,
    LAUNCHES,
    MOST_ROUNDS,
    ROUNDS,
    Candidate,
    Trial,
    is_surprise,
    timed,
)

STEPS = 4


class Clock:
    """Candidates whose launches take as long as they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.ran: list[str] = []
        monkeypatch.setattr(trial.time, "perf_counter", lambda: self.now)

    def candidate(
        self, name: str, *seconds: float, steps: int = 1, predicted: float | None = None
    ) -> Candidate:
        """Its calls take so many seconds, then again; the first one much longer."""
        calls = 0

        def run(batches: Sequence[Any]) -> dict[str, tf.Tensor]:
            nonlocal calls
            self.now += seconds[calls % len(seconds)] + (1000 if not calls else 0)
            calls += 1
            self.ran.append(name)
            return {"loss": tf.constant(float(len(batches)))}

        return Candidate(name, run, steps, predicted=predicted)


def tried(candidates: Sequence[Candidate], engine: LocalEngine | None = None) -> str:
    """The name of the one that was found to be the fastest."""
    made = Trial(engine or LocalEngine(), candidates)
    for _ in range(LAUNCHES * MOST_ROUNDS * len(candidates)):
        if made.fastest is None:
            made([1] * made.steps)
    assert made.fastest is not None
    return made.fastest.name


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_they_take_turns_and_then_the_fastest_is_known(clock: Clock) -> None:
    assert tried([clock.candidate("default", 2.0), clock.candidate("planned", 1.0)]) == "planned"
    default, planned = ["default"] * LAUNCHES, ["planned"] * LAUNCHES
    assert clock.ran == (default + planned + planned + default) * (ROUNDS // 2)


def test_what_is_far_behind_has_no_more_turns(clock: Clock) -> None:
    candidates = [
        clock.candidate("default", 1.0),
        clock.candidate("planned", 1.01 * (1 + BEHIND)),
        clock.candidate("first_k", 1.01 * (1 + BEHIND / 2)),
        clock.candidate("priority", 0.99 * (1 + BEHIND / (ROUNDS - 1))),
    ]
    assert tried(candidates) == "default"
    assert clock.ran.count("planned") == LAUNCHES
    assert clock.ran.count("first_k") == 2 * LAUNCHES
    assert clock.ran.count("priority") == clock.ran.count("default") == LAUNCHES * ROUNDS


def test_the_default_has_its_turns_as_long_as_there_is_another(clock: Clock) -> None:
    assert tried([clock.candidate("default", 2.0), clock.candidate("planned", 1.0)]) == "planned"
    assert clock.ran.count("default") == LAUNCHES * ROUNDS


def test_with_all_others_far_behind_a_round_is_enough(clock: Clock) -> None:
    assert tried([clock.candidate("default", 1.0), clock.candidate("planned", 2.0)]) == "default"
    assert len(clock.ran) == 2 * LAUNCHES


def test_more_rounds_follow_as_long_as_it_is_not_clear_which_is_faster(clock: Clock) -> None:
    # Each call takes 10 % more or less than another; the second is as fast, the third is not.
    noise = (1.1, 0.9, 1.0)
    turn = [factor for factor in noise for _ in range(LAUNCHES)]
    candidates = [
        clock.candidate("default", 1.0),
        clock.candidate("planned", *turn),
        clock.candidate("first_k", *(1.1 * seconds for seconds in turn)),
    ]
    assert tried(candidates) == "default"
    assert clock.ran.count("planned") == clock.ran.count("default") == LAUNCHES * MOST_ROUNDS
    assert clock.ran.count("first_k") < LAUNCHES * MOST_ROUNDS


def test_a_machine_that_becomes_slower_favors_none(clock: Clock) -> None:
    class Tired(Clock):
        """Each call takes a thousandth longer than the one before it."""

        def slower(self, name: str) -> Candidate:
            def run(batches: Sequence[Any]) -> dict[str, tf.Tensor]:
                self.ran.append(name)
                self.now += 1.001 ** len(self.ran)
                return {}

            return Candidate(name, run)

    with pytest.MonkeyPatch.context() as monkeypatch:
        tired = Tired(monkeypatch)
        candidates = [tired.slower(name) for name in ("default", "planned", "first_k")]
        made = Trial(LocalEngine(), candidates)
        while made.fastest is None:
            made([1])
    assert made.fastest.name == "default"
    assert made.seconds == pytest.approx([made.seconds[0]] * 3, rel=2e-3)  # 1.2 % in one round


def test_what_each_took_is_known_then(clock: Clock) -> None:
    made = Trial(LocalEngine(), [clock.candidate("default", 1.0), clock.candidate("planned", 2.0)])
    while made.fastest is None:
        made([1])
    assert made.seconds == [1.0, 2.0]


def test_what_is_slower_does_not_stay(clock: Clock) -> None:
    assert tried([clock.candidate("default", 1.0), clock.candidate("planned", 1.2)]) == "default"


def test_all_run_as_many_steps_as_the_longest_launch_has(clock: Clock) -> None:
    candidates = [
        clock.candidate("default", 1.0),
        clock.candidate("planned", 1.0, steps=4),
        clock.candidate("first_k", 1.0, steps=2),
    ]
    made = Trial(LocalEngine(), candidates)
    assert made.steps == 4
    assert made([1] * 4)["loss"] == 4


@pytest.mark.parametrize(("share", "stays"), [(1 - GAIN / 2, "default"), (1 - 2 * GAIN, "planned")])
def test_the_default_stays_unless_another_is_worth_it(
    clock: Clock, share: float, stays: str
) -> None:
    assert tried([clock.candidate("default", 1.0), clock.candidate("planned", share)]) == stays


def test_launches_that_are_slow_for_once_do_not_count(clock: Clock) -> None:
    planned = clock.candidate("planned", 1.0, 1.0, 1.0, 9.0)
    assert tried([clock.candidate("default", 1.5), planned]) == "planned"


def test_the_log_says_what_was_predicted_and_measured(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ooodist")
    planned = clock.candidate("planned", 1.0, steps=STEPS, predicted=0.2)
    tried([clock.candidate("default", 2.0), planned])
    assert (
        "tried in training: default 500.0 ms a step, planned 250.0 ms a step (predicted 200.0); "
        "planned stays"
    ) in caplog.text


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=4))
def test_what_stays_is_never_slower_than_the_default(seconds: list[float]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Clock(monkeypatch)
        stays = tried([clock.candidate(str(i), each) for i, each in enumerate(seconds)])
    assert seconds[int(stays)] <= seconds[0]
    assert seconds[int(stays)] <= min(seconds) / (1 - GAIN) * (1 + 1e-9)


class Slowest(LocalEngine):
    """This rank measured this; another rank is slower with some of them."""

    others = np.array([1.0, 3.0])

    def all_reduce(self, array: np.ndarray, operation: str = "sum") -> np.ndarray:  # type: ignore[override]
        assert operation == "max"
        return np.maximum(array, self.others)


def test_the_slowest_rank_counts(clock: Clock) -> None:
    candidates = [clock.candidate("default", 2.0), clock.candidate("planned", 1.0)]
    assert tried(candidates, Slowest()) == "default"


def test_seconds_are_those_until_the_logs_are_there(clock: Clock) -> None:
    run = clock.candidate("default", 2.0).run
    run([1])
    assert timed(run, [1]) == ({"loss": 1.0}, 2.0)
    assert timed(lambda _: {}, []) == ({}, 0.0)


@pytest.mark.parametrize(("factor", "is_one"), [(1.04, False), (1.06, True), (0.94, True)])
def test_a_surprise_is_more_than_the_noise(clock: Clock, factor: float, is_one: bool) -> None:
    known, unknown = clock.candidate("default", 1.0, predicted=0.5), clock.candidate("planned", 1.0)
    assert is_surprise([known, unknown], [0.5 * factor, 0.5]) == is_one
    assert not is_surprise([unknown], [0.5])
