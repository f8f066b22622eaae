"""Hidden and exposed seconds of exchanges, on timelines made by hand and simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.costs import Network
from ooodist.planner.data_parallel.plan import Plan, with_carried
from ooodist.planner.data_parallel.simulate import Simulation, Simulator
from ooodist.profiler.recording.timeline import ExchangeRun, Timeline, UnitRun
from ooodist.profiler.recording.xplane import OpEvent
from ooodist.report.overlap import idle_times, measure_overlap, simulated_overlap
from tests.planner import instances
from tests.planner.chains import chain_costs, each_alone


def unit(*spans: tuple[float, float]) -> UnitRun:
    events = tuple(OpEvent("op", "MatMul", start, end, "cpu", 1) for start, end in spans)
    busy = sum(end - start for start, end in spans)
    return UnitRun(0, "dW:a", "dW", spans[0][0], spans[-1][1], busy, events, events)


def exchange(start: float, end: float) -> ExchangeRun:
    return ExchangeRun(0, "a", ("a",), 4, start, end, None, None)


def test_partly_hidden() -> None:
    # compute   |--0 1--|     |--3 4--|          |--8 9--|
    # exchange      |---0.5 ----- 3.5---|  |--6 ... 7--|
    units = (unit((0, 1), (3, 4)), unit((8, 9)))
    overlap = measure_overlap(Timeline((1,), units, (exchange(0.5, 3.5), exchange(6, 7))))
    assert overlap.exchange == pytest.approx(4)
    assert overlap.hidden == pytest.approx(1)  # not the gap within the first unit
    assert overlap.share == pytest.approx(0.25)


def test_exchanges_at_the_same_time_count_once() -> None:
    overlap = measure_overlap(Timeline((1,), (unit((0, 4)),), (exchange(1, 3), exchange(2, 5))))
    assert (overlap.exchange, overlap.hidden) == (4, 3)


def test_no_exchange() -> None:
    overlap = measure_overlap(Timeline((1,), (unit((0, 4)),), ()))
    assert (overlap.exchange, overlap.hidden, overlap.share) == (0, 0, 1)


def test_no_computation() -> None:
    assert measure_overlap(Timeline((1,), (), (exchange(1, 3),))).share == 0


def gaps(simulation: Simulation) -> list[tuple[float, float]]:
    """Before and between the things that the compute stream does."""
    times = [0.0, *(time for span in simulation.units for time in (span.start, span.end))]
    return [
        (end, start) for end, start in zip(times[::2], times[1::2], strict=False) if end < start
    ]


STOCK = Plan("baseline", None, each_alone("w3", "w2", "w1"))


def test_a_call_may_begin_with_a_wait_for_what_is_carried() -> None:
    # compute   ..|u|F F F W3 X3 W2 X2 W1   from 1.5; w1 travels from 0 to 1
    # exchange  |w1|           |w3|...
    costs = chain_costs([1, 2, 3], update=0.5)
    network = Network("horovod", 2, seconds_per_byte=1.0)
    simulation = Simulator(costs, network).run(with_carried(STOCK, ("w1",)))
    assert idle_times(simulation)[0] == (0, 1)
    assert simulated_overlap(simulation, latency=0.0).exchange == 6


def test_simulated() -> None:
    # compute   F F F W3 X3 W2 X2 W1|u|..u|..u
    # exchange        |--w3--|-w2--|w1|          from 4 to 7 to 9 to 10
    costs = chain_costs([1, 2, 3], update=0.5)
    simulation = Simulator(costs, Network("horovod", 2, seconds_per_byte=1.0)).run(STOCK)
    assert idle_times(simulation) == [(8.5, 9), (9.5, 10)]
    overlap = simulated_overlap(simulation, latency=0.0)
    assert (overlap.exchange, overlap.hidden) == (6, 4)  # an update hides nothing


def test_simulated_exchanges_count_from_when_they_were_handed_over() -> None:
    costs = chain_costs([1, 1, 1])
    network = Network("horovod", 2, latency=0.25, seconds_per_byte=0.5)
    simulation = Simulator(costs, network).run(STOCK)
    overlap = simulated_overlap(simulation, network.latency)
    assert overlap.exchange == pytest.approx(3 * 0.75)
    assert overlap.hidden == pytest.approx(2 * 0.75)


def test_cpu_time_of_exchanges_is_not_idle() -> None:
    costs = chain_costs([1, 1, 1])
    network = Network("horovod", 2, seconds_per_byte=0.5, cpu_seconds_per_exchange=0.25)
    simulation = Simulator(costs, network).run(STOCK)
    # w3 and w2 cost CPU time, and shift what follows; nothing hides w1 at the end.
    assert gaps(simulation) == [(5, 5.25), (7.25, 7.5), (8.5, 9)]
    assert idle_times(simulation) == [(8.5, 9)]
    overlap = simulated_overlap(simulation, network.latency)
    assert (overlap.exchange, overlap.hidden) == (1.5, 1)


@given(st.data())
def test_without_cpu_time_all_gaps_are_idle(data: st.DataObject) -> None:
    costs = data.draw(instances.step_costs(instances.ANY))
    network = replace(
        data.draw(instances.networks(instances.ANY, workers=2)),
        cpu_seconds_per_byte=0.0,
        cpu_seconds_per_exchange=0.0,
        cpu_seconds_per_copied_byte=0.0,
    )
    plan = data.draw(instances.plans(costs))
    simulation = Simulator(costs, network).run(plan)
    assert idle_times(simulation) == gaps(simulation)
