"""``rho: auto``: goes down where that is as fast, returns where it is not, and loses little."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.elastic.auto.rounds import LADDER, MOST_LOST, AutoRho
from tests.elastic.test_controller import controller_of, layers_of

STRETCH = 20.0  # seconds of a stretch in full

Curve = Callable[[float], float]  # seconds of full training -> loss


class Training:
    """A training whose loss is a function of its progress, in seconds of full training.

    Attributes:
        rhos: of each stretch.
        said: after each.
        seconds: that it took in all.
    """

    def __init__(
        self,
        curve: Curve,
        speed: Callable[[float], float],
        full: float,
        cost: float = 5.0,
        setup: float = 0.0,
    ) -> None:
        auto, progress, begun = AutoRho(), 0.0, set[float]()
        auto.begin(0.0, setup)
        self.auto, self.seconds = auto, setup - cost  # full training traces, too
        self.rhos, self.said = list[float](), list[str]()
        while progress < full:
            rho = auto.rho
            self.rhos.append(rho)
            seconds, after = (
                STRETCH * rho,
                progress + STRETCH * rho * (speed(rho) if rho < 1 else 1),
            )
            extra = 0.0 if rho in begun else cost * (1 if rho == 1 else 2)
            begun.add(rho)
            # What the meter sees: the difference of the two halves, over half of the time.
            middle = [curve(progress + share * (after - progress)) for share in (0.25, 0.75)]
            fall = (middle[0] - middle[1]) / (seconds / 2)
            self.said.append(auto.end(fall, seconds, extra, full - after))
            self.seconds += seconds + extra
            if after > full:  # in the middle of a stretch
                self.seconds -= seconds * (after - full) / (after - progress)
            progress = after


def exponential(rate: float) -> Curve:
    return lambda at: 2.0 ** -(at / rate)


def power(exponent: float) -> Curve:
    return lambda at: (1 + at / 100) ** -exponent


curves = st.one_of(
    st.builds(exponential, st.floats(200, 5000)), st.builds(power, st.floats(0.1, 2))
)
FULL = 6000.0


@given(curves)
def test_where_the_loss_falls_as_fast_rho_goes_down(curve: Curve) -> None:
    training = Training(curve, lambda rho: 1.1, FULL)
    assert training.auto.level == len(LADDER)
    assert training.auto.rho == 1 or training.auto.rho == LADDER[-1]
    assert training.seconds < FULL


@given(curves, st.floats(0, 0.9))
def test_where_the_loss_falls_more_slowly_training_is_full(curve: Curve, speed: float) -> None:
    training = Training(curve, lambda rho: speed, FULL)
    assert training.auto.level == 0
    assert training.rhos.count(1.0) >= 0.95 * len(training.rhos)


@given(curves, st.sampled_from(LADDER[:-1]))
def test_rho_stays_where_it_is_as_fast(curve: Curve, best: float) -> None:
    training = Training(curve, lambda rho: 1.2 if rho >= best else 0.5, FULL)
    assert training.auto.level == LADDER.index(best) + 1
    assert training.seconds < FULL


@given(curves, st.lists(st.floats(0, 1.5), min_size=5, max_size=5), st.floats(300, 10_000))
def test_no_training_ends_later_than_in_full_by_more_than_a_twentieth(
    curve: Curve, speeds: list[float], full: float
) -> None:
    of = dict(zip(LADDER, speeds, strict=True))
    assert Training(curve, of.__getitem__, full).seconds <= 1.05 * full


@given(
    curves,
    st.lists(st.floats(0, 1.5), min_size=5, max_size=5),
    st.floats(0, 20),
    st.floats(1, 10),
)
def test_nor_by_what_is_measured_before_the_first_round(
    curve: Curve, speeds: list[float], setup: float, times: float
) -> None:
    """Where the training is as long as it must be for that (prospect.py), or longer."""
    of, cost = dict(zip(LADDER, speeds, strict=True)), 5.0
    full = times * (setup + 2 * cost + STRETCH) / MOST_LOST
    assert Training(curve, of.__getitem__, full, cost, setup).seconds <= 1.05 * full


@given(curves, st.floats(300, 6000))
def test_what_becomes_slower_is_left(curve: Curve, since: float) -> None:
    class Until:
        at = 0.0

        def __call__(self, rho: float) -> float:
            self.at += STRETCH * rho
            return 1.3 if self.at < since / 4 else 0.5

    training = Training(curve, Until(), FULL)
    assert training.seconds <= 1.05 * FULL


def test_a_short_training_stays_full_and_says_so_once() -> None:
    """Of 200 s, 8 may be lost: less than a stretch and what it takes to begin."""
    training = Training(exponential(100), lambda _: 2.0, 200.0)
    assert set(training.rhos) == {1.0}
    (said,) = filter(None, training.said)
    assert (
        said == "training goes on in full, as to try 0.8 takes about 30.0 s, and 8.2 s may be lost"
    )


@pytest.mark.parametrize("fall", [0.0, -1.0])
def test_of_a_loss_that_does_not_fall_nothing_is_known(fall: float) -> None:
    auto, found = AutoRho(), ""
    for _ in range(200):
        found = auto.end(fall, STRETCH * auto.rho, 0.0, 1e5) or found
    assert "nothing is known" in found
    assert auto.level == 0


def test_a_fixed_selection_has_no_rho() -> None:
    controller = controller_of(rho="auto", select="head")
    controller.renew([])
    assert controller.auto is None
    assert not controller.is_due


def test_a_model_that_can_save_nothing_is_trained_in_full(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ooodist"):
        controller = controller_of(rho="auto", always=("a", "b"))
    assert "rho auto: all is trained, as 1.00 of a step must be" in caplog.text
    controller.renew([])
    assert controller.rho == 1
    assert layers_of(controller) == "abc"
