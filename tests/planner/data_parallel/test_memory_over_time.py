"""Memory over time against counting, moment by moment, what is alive."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from ooodist.planner.costs import Network, SavedTensor, StepCosts
from ooodist.planner.data_parallel.plan import Plan, with_carried
from ooodist.planner.data_parallel.simulate import Simulation, Simulator
from tests.planner import instances
from tests.planner.chains import chain_costs, each_alone


def weights_of_gradient(costs: StepCosts, tensor: SavedTensor) -> list[str]:
    own = [name for unit in costs.backward if unit.name == tensor.made_by for name in unit.weights]
    return own or [weight.name for weight in costs.weights]


def counted(costs: StepCosts, simulation: Simulation) -> list[tuple[float, int]]:
    """What is alive when a span has ended, before and after what is not needed any more goes."""
    names = [(span.step, span.kind == "update", span.name) for span in simulation.units]
    lives = []  # from and until which moment, of how many bytes
    for step in range(-1, simulation.steps):
        for tensor in costs.tensors:
            units = [(step, False, name) for name in (tensor.made_by, *tensor.used_by)]
            updates = [(step, True, name) for name in weights_of_gradient(costs, tensor)]
            if tensor.used_by:
                updates = []
            if step >= 0:
                ends = [names.index(ender) if ender in names else 10**9 for ender in units]
                ends += [names.index(ender) if ender in names else 10**9 for ender in updates]
                lives.append((ends[0], max(ends), tensor.num_bytes))
            elif carried := [names.index(ender) for ender in updates if ender in names]:
                lives.append((-1, max(carried), tensor.num_bytes))
    at_first = sum(num_bytes for birth, _, num_bytes in lives if birth < 0)
    levels = [(0.0, costs.base_bytes + at_first)]
    for moment, span in enumerate(simulation.units):
        before = after = costs.base_bytes
        for birth, death, num_bytes in lives:
            before += num_bytes if birth <= moment <= death else 0
            after += num_bytes if birth <= moment < death else 0
        for level in (before, after):
            if level != levels[-1][1]:
                levels.append((span.end, level))
    return levels


@given(st.data())
def test_track_is_what_is_counted(data: DataObject) -> None:
    costs = data.draw(instances.step_costs())
    plan = data.draw(instances.plans(costs))
    simulation = Simulator(costs, data.draw(instances.networks())).run(plan)
    assert list(simulation.memory) == counted(costs, simulation)
    assert simulation.memory[0][1] == simulation.memory[-1][1]  # the next call begins with it


def counted_peak(costs: StepCosts, plan: Plan) -> int:
    """The most that is alive if each gradient is kept for as long as the next step allows."""
    step_units = [unit.name for unit in costs.forward]
    step_units += plan.order or [unit.name for unit in costs.backward]
    units = [(step, name) for step in range(plan.steps_per_execution) for name in step_units]

    def death(step: int, tensor: SavedTensor) -> int:
        if tensor.used_by:
            return max(units.index((step, name)) for name in tensor.used_by)
        last = 0
        for weight in weights_of_gradient(costs, tensor):
            waiting = [
                units.index((step + 1, unit.name))
                for unit in costs.forward
                if weight in unit.weights and step + 1 < plan.steps_per_execution
            ]
            last = max(last, min(waiting, default=len(units)) - 1)
        return last

    lives = [
        (units.index((step, tensor.made_by)), death(step, tensor), tensor.num_bytes)
        for step in range(plan.steps_per_execution)
        for tensor in costs.tensors
    ]
    for tensor in costs.tensors:
        late = [
            next(
                (at for at, unit in enumerate(costs.forward) if weight in unit.weights), len(units)
            )
            for weight in weights_of_gradient(costs, tensor)
            if weight in plan.carried and not tensor.used_by
        ]
        if late:
            lives.append((-1, max(late) - 1, tensor.num_bytes))
    return costs.base_bytes + max(
        sum(
            num_bytes
            for birth, last, num_bytes in lives
            if birth <= moment <= last or birth == moment
        )
        for moment in range(-1, len(units))
    )


@given(st.data())
def test_peak_is_what_is_counted_and_holds_for_any_network(data: DataObject) -> None:
    costs = data.draw(instances.step_costs())
    plan = data.draw(instances.plans(costs))
    simulator = Simulator(costs, data.draw(instances.networks()))
    assert simulator.peak_bytes(plan) == counted_peak(costs, plan)
    assert simulator.peak_bytes(plan) >= max(alive for _, alive in simulator.run(plan).memory)


# Of two layers: F2 makes what X2 and W2 read, W1 and W2 make gradients.
COSTS = replace(
    chain_costs([8, 8], update=0.5),
    tensors=(
        SavedTensor(100, "F2", ("X2", "W2")),
        SavedTensor(10, "W1", ()),
        SavedTensor(1, "W2", ()),
    ),
    base_bytes=1000,
)


def test_a_delayed_weight_gradient_keeps_what_it_reads() -> None:
    simulator = Simulator(COSTS, Network("local", 1))
    baseline = Plan("any", ("W2", "X2", "W1"), each_alone("w1", "w2"))
    delayed = replace(baseline, order=("X2", "W1", "W2"))
    assert simulator.peak_bytes(baseline) == 1101
    assert simulator.peak_bytes(delayed) == 1111


def test_track_of_one_step() -> None:
    plan = Plan("any", ("W2", "X2", "W1"), each_alone("w1", "w2"))
    # The update of w2 runs from 3 to 3.5, X2 to 4.5, W1 to 5.5, the update of w1 to 6.
    assert Simulator(COSTS, Network("local", 1)).run(plan).memory == (
        (0.0, 1000),
        (2.0, 1100),
        (3.0, 1101),
        (3.5, 1100),
        (4.5, 1000),
        (5.5, 1010),
        (6.0, 1000),
    )


def test_a_gradient_on_its_way_is_kept_into_the_next_step() -> None:
    slow = Network("any", 2, seconds_per_byte=1.0)
    plan = Plan("any", ("X2", "W1", "W2"), each_alone("w1", "w2"), steps_per_execution=2)
    simulation = Simulator(COSTS, slow).run(plan)
    update = next(span for span in simulation.units if (span.step, span.name) == (0, "w2"))
    second = next(span for span in simulation.units if (span.step, span.name) == (1, "F1"))
    assert second.start < update.start
    assert (update.end, 1000) in simulation.memory


def test_a_carried_gradient_is_kept_between_calls() -> None:
    network = Network("any", 2, seconds_per_byte=0.0)
    alone = Plan("any", ("W2", "X2", "W1"), each_alone("w1", "w2"))
    plan = with_carried(alone, ("w2",))
    simulator = Simulator(COSTS, network)
    assert simulator.run(plan).memory == (
        (0.0, 1001),
        (0.5, 1000),  # the update of w2, as the network is free of cost
        (2.5, 1100),
        (3.5, 1101),
        (4.5, 1001),
        (5.5, 1011),
        (6.0, 1001),
    )
    assert simulator.peak_bytes(plan) == 1101
    assert simulator.run(with_carried(alone, ("w1",))).memory[0] == (0.0, 1010)


def test_no_tensors() -> None:
    simulator = Simulator(replace(COSTS, tensors=()), Network("local", 1))
    plan = Plan("any", None, ())
    assert simulator.peak_bytes(plan) == 1000
    assert simulator.run(plan).memory == ((0.0, 1000),)
