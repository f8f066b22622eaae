"""The simulator against a slow and obvious one, against closed forms, and its speed."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from ooodist.errors import UserError
from ooodist.planner.costs import Network, SavedTensor, StepCosts, UnitCost, WeightCost
from ooodist.planner.data_parallel import simulate
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange, with_carried
from ooodist.planner.data_parallel.simulate import Simulator
from tests.planner import instances
from tests.planner.chains import chain_costs, each_alone
from tests.planner.reference import Reference
from tests.processor_time import fastest


@given(st.data(), st.sampled_from([instances.EIGHTHS, instances.ANY]))
def test_agrees_with_the_reference(data: DataObject, seconds: SearchStrategy[float]) -> None:
    costs = data.draw(instances.step_costs(seconds))
    network = data.draw(instances.networks(seconds))
    plan = data.draw(instances.plans(costs))
    simulator = Simulator(costs, network)
    simulation = simulator.run(plan)
    # The second of two calls: what is carried from the first to it is carried from it to another.
    reference = Reference(costs, network, plan, calls=2)
    (_, first_unit, first_exchange), (seconds_of_call, num_units, num_exchanges) = reference.ends
    steps = plan.steps_per_execution

    units = [(u.step + steps, u.name, u.kind, u.start, u.end) for u in simulation.units]
    played = reference.units[first_unit:num_units]
    expected = [unit for unit in played if unit[2] != "middle" or unit[4] > unit[3]]
    assert [found[:3] for found in units] == [unit[:3] for unit in expected]
    for found, unit in zip(units, expected, strict=True):
        assert found[3:] == pytest.approx(unit[3:], abs=1e-9)
    exchanges = [
        (e.step + steps, e.exchange.name, e.num_bytes, e.ready, e.start, e.end)
        for e in simulation.exchanges
    ]
    passed_then = reference.exchanges[first_exchange:num_exchanges]
    assert [passed[:3] for passed in exchanges] == [e[:3] for e in passed_then]
    for passed, exchange in zip(exchanges, passed_then, strict=True):
        assert passed[3:] == pytest.approx(exchange[3:], abs=1e-9)
    assert simulation.launch_seconds == pytest.approx(seconds_of_call, abs=1e-9)
    assert simulation.steps == plan.steps_per_execution
    # Of steps that are alike, one is played and the others are counted.
    assert simulator.step_seconds(plan) == pytest.approx(simulation.step_seconds, rel=1e-12)


def test_the_picture_in_the_docstring() -> None:
    costs = chain_costs([8, 8, 8], forward=3, output_gradient=3, weight_gradient=3, update=1)
    order = ("X3", "X2", "W1", "W2", "W3")
    plan = Plan("any", order, each_alone("w1", "w2", "w3"), steps_per_execution=2)
    check_picture(costs, plan)
    one = replace(plan, steps_per_execution=1)
    carried = with_carried(one, ("w3",))
    check_picture(costs, carried)
    simulator = Simulator(costs, Network("any", 2, seconds_per_byte=1.0))
    assert simulator.step_seconds(carried) == 38
    assert simulator.step_seconds(one) == 43


def check_picture(costs: StepCosts, plan: Plan) -> None:
    simulation = Simulator(costs, Network("any", 2, seconds_per_byte=1.0)).run(plan)
    compute = ["."] * int(simulation.launch_seconds)
    for unit in simulation.units:
        start, end = int(unit.start), int(unit.end)
        compute[start:end] = "u" if unit.kind == "update" else f"{unit.name} "
    ready, lane = [" "] * len(compute), [" "] * len(compute)
    for span in simulation.exchanges:
        layer = span.exchange.name[1:]
        ready[int(span.ready)] = layer
        lane[int(span.start) : int(span.end)] = f"[  {layer}   ]"
    rows = {"compute  ": compute, "ready    ": ready, "lane     ": lane}
    picture = "\n".join("    " + (name + "".join(row)).rstrip() for name, row in rows.items())
    assert picture in str(simulate.__doc__), picture


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_without_a_network_a_step_is_its_compute(steps: int, workers: int) -> None:
    costs = replace(chain_costs([40, 40], update=0.5), middle_seconds=2.0, launch_seconds=0.75)
    free = Network("any", workers=workers)
    plan = Plan("any", None, each_alone("w1", "w2"), steps_per_execution=steps)
    assert costs.compute_seconds == 2 + 3 + 2 + 1
    assert Simulator(costs, free).step_seconds(plan) == pytest.approx(8 + 0.75 / steps)


def test_one_worker_pays_for_no_network_and_needs_no_exchanges() -> None:
    slow = Network("local", 1, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0)
    simulation = Simulator(chain_costs([40]), slow).run(Plan("any", None, ()))
    assert simulation.step_seconds == 2.0
    assert simulation.exchanges == ()


@pytest.mark.parametrize("steps", [1, 4])
def test_one_layer_waits_for_its_whole_exchange(steps: int) -> None:
    costs = replace(chain_costs([40], update=0.5), launch_seconds=2.0)
    network = Network("any", 2, 0.25, 0.5, seconds_per_byte=1 / 8, pull_seconds_per_byte=1 / 16)
    plan = Plan("any", None, each_alone("w1"), steps_per_execution=steps)
    exchange = 0.25 + 0.5 + 40 / 8 + 40 / 16
    expected = 1 + 1 + exchange + 0.5 + 2.0 / steps
    assert Simulator(costs, network).step_seconds(plan) == pytest.approx(expected)


TWO_LAYERS = chain_costs([80, 80])
DEFERRED = ("X2", "W1", "W2")  # of TWO_LAYERS
TENTHS = Network("any", 2, seconds_per_byte=1 / 10)


def test_steps_of_a_launch_overlap_a_network_that_limits() -> None:
    # W1's exchange of 8 s hides W2 and the next F1; the one of W2 lasts until F2 may run. Per step:
    #   compute  F2 X2 W1 W2 F1 ..............
    #   lane              [  w1  ][  w2      ]
    def launch(steps: int) -> float:
        plan = Plan("any", DEFERRED, each_alone("w1", "w2"), steps_per_execution=steps)
        return steps * Simulator(TWO_LAYERS, TENTHS).step_seconds(plan)

    assert launch(1) == pytest.approx(1 + 3 + 16)  # the barrier: nothing overlaps F1 and F2
    for steps in (2, 3, 4):
        assert launch(steps) == pytest.approx(1 + steps * (3 + 16))


def test_with_all_carried_the_first_layer_waits_for_its_exchange() -> None:
    # Each call begins with the exchanges of the one before, and ends with its computing:
    #   compute  ........ F1 ....... F2 X2 W1 W2
    #   lane     [  w1  ][  w2      ]
    def launch(steps: int, *carried: str) -> float:
        plan = Plan("any", DEFERRED, each_alone("w1", "w2"), steps_per_execution=steps)
        return steps * Simulator(TWO_LAYERS, TENTHS).step_seconds(with_carried(plan, carried))

    assert launch(1, "w1", "w2") == pytest.approx(16 + 1 + 3)
    assert launch(1, "w2") == pytest.approx(8 + 1 + 2 + 8)  # w2 hides F1, and w1 hides W2
    assert launch(3, "w2") == pytest.approx(8 + 1 + 2 + (8 + 8 + 3) * 2 + 8)


def test_a_weight_of_which_a_chunk_is_carried_is_updated_when_that_arrives() -> None:
    #   compute  F1 ..u2F2 X2 W2 W1 .......u1
    #   lane     [ 2b ]         [ 2a ][ 1 ]     of layer 2, chunk b is carried, and a is not
    first, second = (PlannedExchange(("w2",), part, 2) for part in (0, 1))
    exchanges = (replace(second, carried=True), first, *each_alone("w1"))
    plan = Plan("any", ("X2", "W2", "W1"), exchanges)
    costs, network = chain_costs([64, 128], update=0.25), replace(TENTHS, seconds_per_byte=1 / 16)
    simulation = Simulator(costs, network).run(plan)
    names = [(0, "F1"), (-1, "w2"), (0, "F2"), (0, "X2"), (0, "W2"), (0, "W1"), (0, "w1")]
    assert [(unit.step, unit.name) for unit in simulation.units] == names
    assert [(e.step, e.exchange, e.ready, e.start) for e in simulation.exchanges] == [
        (-1, exchanges[0], 0, 0),
        (0, first, 7.25, 7.25),
        (0, exchanges[2], 8.25, 11.25),
    ]
    assert simulation.step_seconds == 15.5


@given(st.data(), st.sampled_from([instances.EIGHTHS, instances.ANY]))
def test_of_long_calls_it_matters_little_what_they_leave(
    data: DataObject, seconds: SearchStrategy[float]
) -> None:
    """A call with carried exchanges differs from one without by a step at either end."""
    costs = data.draw(instances.step_costs(seconds))
    network = data.draw(instances.networks(seconds))
    plan = replace(data.draw(instances.plans(costs)), steps_per_execution=100)
    simulator = Simulator(costs, network)
    found, without = (simulator.step_seconds(each) for each in (plan, with_carried(plan, ())))
    alone = simulator.step_seconds(with_carried(replace(plan, steps_per_execution=1), ()))
    assert found == pytest.approx(without, abs=2.001 * alone / 100 + 1e-9)


def test_a_network_that_keeps_up_costs_its_tail_only() -> None:
    quick = replace(TENTHS, seconds_per_byte=1 / 160)  # 0.5 s an exchange
    plan = Plan("any", DEFERRED, each_alone("w1", "w2"), steps_per_execution=5)
    launch = 5 * Simulator(TWO_LAYERS, quick).step_seconds(plan)
    assert launch == pytest.approx(5 * TWO_LAYERS.compute_seconds + 0.5)


def test_in_sequence_the_first_holds_back_those_that_are_ready() -> None:
    def ends(*sequence: str) -> dict[str, float]:
        simulation = Simulator(TWO_LAYERS, TENTHS).run(Plan("any", None, each_alone(*sequence)))
        return {span.exchange.name: span.end for span in simulation.exchanges}

    assert ends("w2", "w1") == {"w2": 3 + 8, "w1": 3 + 8 + 8}  # W2 is ready at 3, W1 at 5
    assert ends("w1", "w2") == {"w1": 5 + 8, "w2": 5 + 8 + 8}


def at_once(count: int, num_bytes: int) -> StepCosts:
    """Gradients that are all ready at 1 s."""
    names = tuple(f"w{number}" for number in range(count))
    weights = tuple(WeightCost(name, num_bytes) for name in names)
    return StepCosts((), (UnitCost("W", "dW", 1.0, weights=names),), weights)


@pytest.mark.parametrize("by_urgency", [False, True])
def test_latency_is_paid_each_time_with_a_credit_of_one_and_else_once(by_urgency: bool) -> None:
    simulator = Simulator(at_once(6, 10), Network("any", 2, 0.5, seconds_per_byte=1 / 10))
    names = [f"w{number}" for number in range(6)]
    plan = Plan("any", None, each_alone(*names), by_urgency=by_urgency)
    assert simulator.step_seconds(replace(plan, credit=1)) == pytest.approx(1 + 6 * (0.5 + 1))
    assert simulator.step_seconds(replace(plan, credit=2)) == pytest.approx(1 + 0.5 + 6)
    assert simulator.step_seconds(plan) == pytest.approx(1 + 0.5 + 6)


def test_buckets_save_the_fixed_cost_and_pieces_pay_it_again() -> None:
    simulator = Simulator(at_once(2, 100), Network("any", 2, fixed=0.5, seconds_per_byte=1 / 100))
    plan = Plan("any", None, each_alone("w0", "w1"))
    bucket = replace(plan, exchanges=(PlannedExchange(("w0", "w1")),))
    assert simulator.step_seconds(plan) == pytest.approx(1 + 2 * 1.5)
    assert simulator.step_seconds(bucket) == pytest.approx(1 + 0.5 + 2)
    pieces = replace(bucket, partition_bytes=90)
    assert simulator.step_seconds(pieces) == pytest.approx(1 + 3 * 0.5 + 2)
    assert [span.num_bytes for span in simulator.run(pieces).exchanges] == [90, 90, 20]
    assert {span.exchange.name for span in simulator.run(pieces).exchanges} == {"w0+1"}


@pytest.mark.parametrize("partition_bytes", [None, 128])
def test_parts_are_pulled_while_others_are_pushed(partition_bytes: int | None) -> None:
    per_byte = 1 / 128
    network = Network("any", 2, seconds_per_byte=per_byte, pull_seconds_per_byte=per_byte)
    simulator = Simulator(at_once(1, 512), network)
    plan = Plan("any", None, each_alone("w0"))
    assert simulator.step_seconds(plan) == pytest.approx(1 + 4 + 4)
    if partition_bytes:
        plan = replace(plan, partition_bytes=partition_bytes)
    else:
        parts = tuple(PlannedExchange(("w0",), part, 4) for part in range(4))
        plan = replace(plan, exchanges=parts)
    assert simulator.step_seconds(plan) == pytest.approx(1 + 4 + 1)


def test_the_urgent_overtakes_between_pieces() -> None:
    # Of w2, ready at 3, two pieces of 1.5 s have begun when w1 is ready at 5.
    plan = Plan("any", None, each_alone("w1", "w2"), credit=1, by_urgency=True, partition_bytes=15)
    spans = Simulator(chain_costs([60, 60]), TENTHS).run(plan).exchanges
    assert [span.exchange.name for span in spans] == ["w2"] * 2 + ["w1"] * 4 + ["w2"] * 2
    assert [span.start for span in spans] == pytest.approx([3 + 1.5 * n for n in range(8)])
    assert {span.exchange.name: span.ready for span in spans} == {"w1": 5, "w2": 3}


def test_what_gets_ready_when_there_is_room_competes_for_it() -> None:
    plan = Plan("any", None, each_alone("w1", "w2"), credit=1, by_urgency=True, partition_bytes=20)
    spans = Simulator(chain_costs([40, 40]), TENTHS).run(plan).exchanges
    assert [span.exchange.name for span in spans] == ["w2", "w1", "w1", "w2"]


def test_of_equal_urgency_the_earlier_step_goes_first() -> None:
    # No F unit waits for the weight, so that both steps' gradients are there when w0 has gone.
    costs = StepCosts(
        (UnitCost("F", "F", 1.0),),
        (UnitCost("W0", "dW", 0.0, weights=("w0",)), UnitCost("W", "dW", 0.0, weights=("w",))),
        (WeightCost("w0", 100), WeightCost("w", 10)),
    )
    plan = Plan("any", None, each_alone("w", "w0"), 1, by_urgency=True, steps_per_execution=3)
    spans = Simulator(costs, TENTHS).run(plan).exchanges
    order = [(span.step, span.exchange.name) for span in spans]
    assert order == [(0, "w0"), (0, "w"), (1, "w"), (2, "w"), (1, "w0"), (2, "w0")]


def test_exchanges_take_cpu_time_only_from_a_stream_that_has_work() -> None:
    # w2 arrives at 3.5, during X2, and delays W1; w1 arrives when all is done.
    costs = chain_costs([50, 50], update=0.25)
    network = Network(
        "any",
        2,
        seconds_per_byte=1 / 100,
        cpu_seconds_per_byte=1 / 500,
        cpu_seconds_per_exchange=0.3,
    )
    simulation = Simulator(costs, network).run(Plan("any", None, each_alone("w2", "w1")))
    spans = {span.name: (span.start, span.end) for span in simulation.units}
    assert spans["X2"] == pytest.approx((3, 4))
    assert spans["w2"] == pytest.approx((4.4, 4.65))
    assert spans["W1"] == pytest.approx((4.65, 5.65))
    assert spans["w1"] == pytest.approx((6.15, 6.4))
    assert simulation.step_seconds == pytest.approx(6.4)


def test_a_short_idle_time_covers_as_much_of_the_cpu_time() -> None:
    # F1 and W1 end at 2, the exchange arrives at 2.25: of its 1 s of CPU time 0.75 s are left.
    costs = chain_costs([25], update=0.5)
    network = Network("any", 2, seconds_per_byte=1 / 100, cpu_seconds_per_exchange=1.0)
    plan = Plan("any", None, each_alone("w1"))
    assert Simulator(costs, network).step_seconds(plan) == pytest.approx(2 + 1.0 + 0.5)


def test_a_stream_that_has_not_begun_is_not_idle() -> None:
    costs = chain_costs([4], forward=0.0, weight_gradient=0.0)
    network = Network("any", 2, cpu_seconds_per_exchange=1.0)
    assert Simulator(costs, network).step_seconds(Plan("any", None, each_alone("w1"))) == 1.0


def test_updates_take_turns_with_units() -> None:
    costs = chain_costs([0, 0, 0], update=0.5)
    simulation = Simulator(costs, Network("any", 2)).run(
        Plan("any", None, each_alone("w3", "w2", "w1"), steps_per_execution=2)
    )
    names = [span.name for span in simulation.units if span.step == 1]
    assert names == ["F1", "F2", "F3", "W3", "w3", "X3", "W2", "w2", "X2", "W1", "w1"]
    assert simulation.step_seconds == pytest.approx(costs.compute_seconds)


BAD_PLANS = [
    (Plan("p", ("X2", "W1"), each_alone("w1", "w2")), "plan p: the order has 2 units"),
    (Plan("p", ("X2", "W1", "W1"), each_alone("w1", "w2")), "3 units, 2 of them different"),
    (Plan("p", ("X2", "W1", "W9"), each_alone("w1", "w2")), "no backward unit W9"),
    (Plan("p", ("W1", "X2", "W2"), each_alone("w1", "w2")), "W1 stands before X2"),
    (Plan("p", None, each_alone("w1")), "the parts of w2 are not"),
    (Plan("p", None, each_alone("w1", "w2", "w2")), "the parts of w2 are not"),
    (Plan("p", None, each_alone("w1", "w9")), "no weight w9"),
    (
        Plan("p", None, (PlannedExchange(("w1", "w2")),), wire="float16", narrow=("w1",)),
        r"plan p: narrow has w1, whose exchange w1\+1 also has w2",
    ),
    (
        Plan("p", None, each_alone("w1", "w2"), wire="float16", narrow=("w9",)),
        "plan p: narrow has w9, which",
    ),
    (
        Plan("p", None, (*each_alone("w1"), *(PlannedExchange(("w2",), p, 3) for p in range(3)))),
        "gradient of w2 has 80 bytes, too few for 3 parts",
    ),
]


@pytest.mark.parametrize(("plan", "message"), BAD_PLANS)
def test_refuses_plans_that_do_not_fit(plan: Plan, message: str) -> None:
    simulator = Simulator(TWO_LAYERS, TENTHS)
    for method in (simulator.step_seconds, simulator.run):
        with pytest.raises(UserError, match=message):
            method(plan)


def unit(name: str, needs: tuple[str, ...] = (), weights: tuple[str, ...] = ()) -> UnitCost:
    return UnitCost(name, "dW", 1.0, needs, weights)


W = (WeightCost("w", 4),)
BAD_COSTS = [
    (StepCosts((), (unit("a"), unit("a")), ()), "unit a is there 2 times"),
    (StepCosts((), (), W + W), "weight w is there 2 times"),
    (StepCosts((), (unit("a", needs=("b",)),), ()), r"a needs unknown units \['b'\]"),
    (StepCosts((), (unit("a", weights=("b",)),), ()), r"a has unknown weights \['b'\]"),
    (
        StepCosts((), (unit("a", needs=("b",)), unit("b")), ()),
        "plan p: a stands before b, which it needs",
    ),
    (
        StepCosts((), (unit("a"),), (), (SavedTensor(4, "a", ("b",)),)),
        r"a tensor is kept for unknown units \['b'\]",
    ),
    (
        StepCosts((), (unit("a", weights=("w",)), unit("b", weights=("w",))), W),
        r"b completes the gradients of \['w'\]",
    ),
]


@pytest.mark.parametrize(("costs", "message"), BAD_COSTS)
def test_refuses_costs_that_contradict_themselves(costs: StepCosts, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Simulator(costs, TENTHS).run(Plan("p", None, ()))


def test_a_type_of_unknown_size_is_not_split() -> None:
    costs = replace(TWO_LAYERS, weights=tuple(replace(w, dtype="int4") for w in TWO_LAYERS.weights))
    parts = tuple(PlannedExchange(("w2",), part, 2) for part in range(2))
    with pytest.raises(UserError, match="w2 is of type int4 and cannot be split"):
        Simulator(costs, TENTHS).step_seconds(Plan("p", None, (*each_alone("w1"), *parts)))


@pytest.mark.parametrize("by_urgency", [False, True])
def test_is_fast_enough_to_search_with(by_urgency: bool) -> None:
    """It is 6,000 to 7,000 a second; two thirds are left for noise."""
    costs = chain_costs([1000 * layer for layer in range(1, 55)], update=0.01)
    assert len(costs.forward) + len(costs.backward) == 161
    network = Network("any", 2, 0.1, 0.1, 1 / 10_000, 1 / 100_000, 1 / 1_000_000, 0.01)
    names = [weight.name for weight in costs.weights]
    plan = Plan(
        "any",
        tuple(unit.name for unit in costs.backward),
        each_alone(*(names if by_urgency else reversed(names))),
        credit=4,
        by_urgency=by_urgency,
        steps_per_execution=3,
    )
    simulator = Simulator(costs, network)
    seconds = fastest(lambda: [simulator.step_seconds(plan) for _ in range(20)], runs=10) / 20
    assert 1 / seconds > 2000


@pytest.mark.parametrize("by_urgency", [False, True])
def test_the_work_grows_with_the_layers(by_urgency: bool) -> None:
    """Calls that simulating a plan makes, of Python and of what is built in."""

    def calls(layers: int) -> int:
        costs = chain_costs([1000] * layers, update=0.01)
        network = Network("any", 2, 0.1, 0.1, 1 / 1000, by_urgency=by_urgency)
        plan = Plan(
            "any",
            tuple(unit.name for unit in costs.backward),
            each_alone(*(weight.name for weight in reversed(costs.weights))),
            credit=4,
            by_urgency=by_urgency,
            steps_per_execution=3,
        )
        simulator = Simulator(costs, network)
        simulator.step_seconds(plan)  # what plans have in common is found
        count = 0

        def counted(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(counted)
        simulator.step_seconds(plan)
        sys.setprofile(before)
        return count

    assert calls(800) < 8.5 * calls(100)
