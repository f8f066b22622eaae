"""What training steps take corrects what was measured for planning them.

A profile is measured piece by piece, which errs where workers share the cores of a machine: an
exchange that waits for a busy core is fast where it meets an idle one. Whole steps that were
trained with known plans tell by how much, in two factors: of all that computes, and of all that
exchanges::

    measured   default 27 ms
    simulated  default 56 ms, planned 30 ms   as the profile says
    corrected  default 28 ms, planned 18 ms   exchanges count 0.4 times
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import brute, fmin

from ooodist.schedule.costs import Network, StepCosts
from ooodist.schedule.plan import Plan
from ooodist.schedule.simulate import Simulator

# Standard deviations, of logarithms.
COMPUTE_ERROR = 0.15  # of what the profile says of computing
EXCHANGE_ERROR = 0.6  # and of exchanges
ERRORS = COMPUTE_ERROR, EXCHANGE_ERROR
STEP_ERROR = 0.03  # of steps that were timed
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
    """Steps that were trained.

    Attributes:
        plan: with which.
        seconds: that a step took.
    """

    plan: Plan
    seconds: float


@dataclass(frozen=True)
class Correction:
    """How many times as long things take as the profile says.

    Attributes:
        compute: units, updates, and the start of a launch.
        exchange: exchanges, and what they cost the processor.
    """

    compute: float = 1.0
    exchange: float = 1.0

    def costs(self, costs: StepCosts) -> StepCosts:
        """Corrected; tracing is no part of steps, and takes as long as before."""
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
            launch_seconds=costs.launch_seconds * self.compute,
        )

    def network(self, network: Network) -> Network:
        """Corrected."""
        seconds = {name: getattr(network, name) * self.exchange for name in NETWORK_SECONDS}
        return replace(network, **seconds)


def correct(costs: StepCosts, network: Network, observed: Sequence[Observed]) -> Correction:
    """The most probable correction, after such steps.

    The factors and the errors of the steps are taken to be log-normal and independent, so what is
    most probable has the least sum of squared logarithms, each by its standard deviation.

    Args:
        costs, network: as they were measured.
        observed: steps that were trained; none: nothing is to be corrected.

    Source: maximum a posteriori estimation, e.g. Bishop, "Pattern Recognition and Machine
    Learning", section 1.2.5.
    """
    if not observed:
        return Correction()

    def surprise(factors: np.ndarray) -> float:
        made = Correction(*map(math.exp, factors))
        simulator = Simulator(made.costs(costs), made.network(network))
        errors = [
            math.log(simulator.step_seconds(each.plan) / each.seconds) / STEP_ERROR
            for each in observed
        ]
        return math.hypot(*factors / ERRORS, *errors)

    # A plan's seconds have corners, where one thing begins to hide another, so there are several
    # minima: the best point of a grid is near the lowest, which Nelder and Mead's search finds.
    grid = tuple(slice(-3 * error, 3.1 * error, error / 2) for error in ERRORS)
    return Correction(*map(math.exp, brute(surprise, grid, finish=fmin)))
