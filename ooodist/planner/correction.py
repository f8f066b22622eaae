"""Corrects measured costs by the seconds of real training steps.

A profile is measured piece by piece, which errs where workers share the cores of a machine: an
exchange that waited for a busy core when it was measured is fast where it finds an idle one. Whole
steps, trained with known plans, tell the error as factors: of all that computes, of all that is
exchanged, and of what a call costs besides its steps, which other workers fill with their work::

    measured   default 27 ms
    simulated  default 56 ms, planned 30 ms   as the profile says
    corrected  default 28 ms, planned 18 ms   exchanges count 0.4 times
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

import numpy as np

from ooodist.planner.costs import LowRankCosts, Network, StepCosts
from ooodist.planner.data_parallel.plan import Plan
from ooodist.planner.data_parallel.simulate import Simulator

# Standard deviations of the factors' logarithms, for factors below and above 1. Computing was
# measured with nothing else running, exchanges beside a computation that keeps all cores busy. Time
# between calls is no loss where a worker on the same cores computes meanwhile.
COMPUTE_ERRORS = 0.1, 0.3
EXCHANGE_ERRORS = 0.7, 0.2
CALL_ERRORS = 0.7, 0.2
GRID = 0.5  # in standard deviations
STEP_ERROR = 0.03  # standard deviation of the logarithms of timed steps
NETWORK_SECONDS = (
    "latency",
    "fixed",
    "seconds_per_byte",
    "pull_seconds_per_byte",
    "cpu_seconds_per_byte",
    "cpu_seconds_per_exchange",
    "cpu_seconds_per_copied_byte",
)


class Observed(NamedTuple):
    """Steps that were trained with a plan.

    Attributes:
        plan: the plan.
        seconds: seconds per step.
    """

    plan: Plan
    seconds: float


@dataclass(frozen=True)
class Correction:
    """Factors from profiled to real seconds.

    Attributes:
        compute: factor of units, updates, products of low rank, and the start of a call.
        exchange: factor of exchanges, and of their CPU time.
        call: a further factor of the start of a call.
    """

    compute: float = 1.0
    exchange: float = 1.0
    call: float = 1.0

    def costs(self, costs: StepCosts) -> StepCosts:
        """Corrected costs, except for tracing, which is no part of steps."""
        return replace(
            costs,
            forward=tuple(
                replace(unit, seconds=unit.seconds * self.compute) for unit in costs.forward
            ),
            backward=tuple(
                replace(unit, seconds=unit.seconds * self.compute) for unit in costs.backward
            ),
            weights=tuple(
                replace(weight, update_seconds=weight.update_seconds * self.compute)
                for weight in costs.weights
            ),
            middle_seconds=costs.middle_seconds * self.compute,
            launch_seconds=costs.launch_seconds * self.compute * self.call,
            low_rank=LowRankCosts(*(each * self.compute for each in astuple(costs.low_rank))),
        )

    def network(self, network: Network) -> Network:
        """Corrected costs of exchanges."""
        seconds = {name: getattr(network, name) * self.exchange for name in NETWORK_SECONDS}
        return replace(network, **seconds)


def correct(costs: StepCosts, network: Network, observed: Sequence[Observed]) -> Correction:
    """The most probable correction, given these steps.

    The factors and the errors of the steps are assumed to be independent and log-normal, each side
    of a factor with its own deviation; so the most probable correction minimizes the sum of squared
    logarithms, each divided by its standard deviation.

    Args:
        costs, network: as measured.
        observed: steps that were trained; if there are none, nothing is corrected.

    Source: maximum a posteriori estimation, e.g. Bishop, "Pattern Recognition and Machine
    Learning", section 1.2.5.
    """
    if not observed:
        return Correction()

    def surprise(deviations: Iterable[float]) -> float:
        made = correction(*deviations)
        simulator = Simulator(made.costs(costs), made.network(network))
        errors = [
            math.log(simulator.step_seconds(each.plan) / each.seconds) / STEP_ERROR
            for each in observed
        ]
        return math.hypot(*deviations, *errors)

    from scipy.optimize import minimize  # half a second, which jobs without a plan save

    # A plan's seconds have kinks, where one thing begins to hide another, so there are several
    # minima: the best point of a grid is near the lowest, which the Nelder-Mead search finds.
    # What a call costs besides has none, so two of its values are enough.
    deviations = np.arange(-3, 3.1, GRID)
    begin = min(itertools.product(deviations, deviations, (-2, 0)), key=surprise)
    simplex = begin + GRID * np.array([(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)])
    options = {"initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-3}
    return correction(*minimize(surprise, begin, method="Nelder-Mead", options=options).x)


def correction(compute: float, exchange: float, call: float) -> Correction:
    """The correction for deviations in standard deviations; 0 for all changes nothing."""
    pairs = (compute, COMPUTE_ERRORS), (exchange, EXCHANGE_ERRORS), (call, CALL_ERRORS)
    return Correction(*(math.exp(number * errors[int(number > 0)]) for number, errors in pairs))
