"""What selections cost in a pipeline, and how good those are that are found by it.

Layers are a chain, numbered from the input, one weight each; ``stages`` says how many of them each
stage has::

    dX:loss@1 -> dX:2@1 -> dX:1@0          stages = (2, 1)
        |           |          |
     dW:2@1      dW:1@0     dW:0@0
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from ooodist.elastic.pipeline_cost_model import PipelineCostModel
from ooodist.elastic.selection.select import select
from ooodist.planner.costs import StepCosts, UnitCost, WeightCost
from ooodist.planner.pipeline.actions import Schedule, trained_from
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost
from ooodist.planner.pipeline.named import schedules
from ooodist.planner.pipeline.plan import PipelinePlan, reschedule
from ooodist.planner.pipeline.simulate import simulate_pipeline
from tests.elastic.brute_force import EXACT, check_close_to_the_best
from tests.elastic.selection.test_select import total

Seconds = Callable[[], float]


def units_of(
    stages: Sequence[int], path: Seconds, own: Seconds, update: Seconds = lambda: 0.0
) -> StepCosts:
    """Of a micro-batch; seconds of the dX and dW units and of the updates, from the output down."""
    stage_of = [stage for stage, number in enumerate(stages) for _ in range(number)]
    units = [UnitCost(f"dX:loss@{len(stages) - 1}", "dX", path())]
    weights = []
    for layer, stage in reversed(list(enumerate(stage_of))):
        needs = (next(unit.name for unit in reversed(units) if unit.kind == "dX"),)
        units.append(UnitCost(f"dW:{layer}@{stage}", "dW", own(), needs, (f"w{layer}",)))
        weights.append(WeightCost(f"w{layer}", 4, update_seconds=update()))
        if layer:
            units.append(UnitCost(f"dX:{layer}@{stage}", "dX", path(), needs))
    return StepCosts((), tuple(units), tuple(weights))


def costs_of(units: StepCosts, forward: Sequence[float]) -> PipelineCosts:
    """What stages cost whose units take just so long; these are their forward passes.

    The first one has no I: to send a gradient is all that I is for.
    """
    updates = {weight.name: weight.update_seconds for weight in units.weights}
    stages = []
    for stage, seconds in enumerate(forward):
        own = [unit for unit in units.backward if unit.name.endswith(f"@{stage}")]
        back = sum(unit.seconds for unit in own if unit.kind == "dX" and stage)
        weight = sum(unit.seconds for unit in own) - back
        update = sum(updates[name] for unit in own for name in unit.weights)
        stages.append(StageCost(seconds, back, weight, update=update))
    return PipelineCosts(tuple(stages))


def unplanned(units: StepCosts, costs: PipelineCosts, schedule: Schedule) -> PipelineCostModel:
    """No other schedule is made for a selection."""
    return PipelineCostModel(units, costs, schedule, lambda _, first: trained_from(schedule, first))


def replanned(
    units: StepCosts, costs: PipelineCosts, schedule: Schedule, name: str
) -> PipelineCostModel:
    plan = PipelinePlan(tuple(range(n, n + 1) for n in range(schedule.stages)), schedule, costs)
    return PipelineCostModel(
        units, costs, schedule, lambda costs, first: reschedule(plan, name, costs, first).schedule
    )


def numbers(cost_model: PipelineCostModel, *layers: int) -> frozenset[int]:
    """The items of these layers."""
    return cost_model.choice.numbers({f"w{layer}" for layer in layers})


def one() -> float:
    return 1.0


SCHEDULES: list[Callable[[int], Schedule]] = [
    lambda stages: schedules.gpipe(stages, 3),
    lambda stages: schedules.one_forward_one_backward(stages, 4),
    lambda stages: schedules.zero_bubble_h1(stages, 4),
    lambda stages: schedules.zero_bubble_h2(stages, 5),
]


def random_pipeline(generator: random.Random) -> tuple[StepCosts, PipelineCosts, Schedule]:
    """Two or three stages of one to three layers, no two of which are alike."""
    stages = [generator.randint(1, 3) for _ in range(generator.randint(2, 3))]
    stages[-1] = min(stages[-1], 8 - sum(stages[:-1]))

    def seconds() -> float:
        return generator.uniform(0.1, 2.0)

    units = units_of(stages, seconds, seconds, lambda: generator.uniform(0, 0.5))
    costs = costs_of(units, [seconds() for _ in stages])
    return units, costs, generator.choice(SCHEDULES)(len(stages))


def test_everything_takes_what_the_full_schedule_takes() -> None:
    generator = random.Random(0)
    for _ in range(30):
        units, costs, schedule = random_pipeline(generator)
        cost_model = unplanned(units, costs, schedule)
        everything = range(len(cost_model.choice.items))
        full = simulate_pipeline(schedule, costs)
        assert cost_model.seconds(everything) == pytest.approx(full.step_seconds)


def test_only_the_gradients_of_what_is_selected_are_exchanged() -> None:
    units = units_of((2, 2), one, one)
    costs = costs_of(units, [1, 1])
    stages = (replace(costs.stages[0], exchange=6.0), replace(costs.stages[1], exchange=8.0))
    schedule = schedules.one_forward_one_backward(2, 2)
    cost_model = unplanned(units, replace(costs, stages=stages), schedule)

    def exchanges(*layers: int) -> list[float]:
        masked = cost_model.masked(numbers(cost_model, *layers))
        return [stage.exchange for stage in masked.stages]

    assert exchanges(0, 1, 2, 3) == [6, 8]
    assert exchanges(0, 3) == [3, 4]
    assert exchanges(3) == [0, 4]


def test_stages_before_the_first_selected_only_run_forward() -> None:
    """F 1, dX 1 and dW 1 s each; two layers a stage, two micro-batches.

    ::

        rank 0   F F               nothing else
        rank 1     F W . F W       only the loss and the dW of the last layer: no I
    """
    units = units_of((2, 2), one, one)
    cost_model = unplanned(units, costs_of(units, [1, 1]), schedules.one_forward_one_backward(2, 2))
    head = numbers(cost_model, 3)
    assert cost_model.first_trained(head) == 1
    assert [stage.weight_gradient for stage in cost_model.masked(head).stages] == [0, 2]
    assert cost_model.seconds(head) == 1 + 2 * (1 + 2)
    # The layer below costs its dW and the dX between the two.
    assert cost_model.seconds(numbers(cost_model, 2, 3)) == 1 + 2 * (1 + 4)
    # With the last layer of stage 0, rank 1 runs all of its I (3 s), and the last of them ends
    # before the last W (1 s) of both.
    assert cost_model.first_trained(numbers(cost_model, 1, 3)) == 0
    assert cost_model.seconds(numbers(cost_model, 1, 3)) == 1 + 2 * (1 + 3 + 1) + 1


def test_what_is_skipped_is_simulated_as_it_is_carried_out() -> None:
    """The seconds of a selection are those of the schedule of the stages with its own costs."""
    generator = random.Random(1)
    for _ in range(30):
        units, costs, schedule = random_pipeline(generator)
        cost_model = unplanned(units, costs, schedule)
        items = cost_model.choice.items
        mask = frozenset(n for n in range(len(items)) if generator.random() < 0.4) | {0}
        first = cost_model.first_trained(mask)
        timeline = simulate_pipeline(trained_from(schedule, first), cost_model.masked(mask))
        assert cost_model.seconds(mask) == timeline.step_seconds
        kinds = {
            run.action.kind for runs in timeline.runs for run in runs if run.action.stage < first
        }
        assert kinds <= {"F"}
        assert timeline.busy == pytest.approx(
            expected_busy(units, costs, schedule, mask, cost_model)
        )


def expected_busy(
    units: StepCosts,
    costs: PipelineCosts,
    schedule: Schedule,
    mask: frozenset[int],
    cost_model: PipelineCostModel,
) -> list[float]:
    """Of each rank: the forward passes, and of the units those that a selection needs.

    A stage that is asked for input gradients makes all of its own, on the way to all that it has.
    """
    needed = {f"dW:{name[1:]}" for name in cost_model.choice.weights(mask)}
    first = cost_model.first_trained(mask)
    lowest = min(int(name.partition(":")[2]) for name in needed)
    busy = []
    for stage, cost in enumerate(costs.stages):
        seconds = cost.forward
        for unit in units.backward:
            layer, _, of = unit.name.partition(":")[2].partition("@")
            if int(of) != stage or stage < first:
                continue
            is_path = unit.kind == "dX" and (layer == "loss" or int(layer) > lowest)
            if is_path or unit.name.partition("@")[0] in needed:
                seconds += unit.seconds
        busy.append(schedule.microbatches * seconds)
    return busy


def test_what_fits_into_a_bubble_is_free() -> None:
    """Rank 0 waits for the slow rank 1: the dW of a second layer there is in no one's way."""
    seconds = iter([2, 2, 1.0, 0.25, 0.25])
    own = iter([4, 4, 0.5, 0.5, 0.5])
    units = units_of((3, 2), lambda: next(seconds), lambda: next(own))
    cost_model = unplanned(units, costs_of(units, [1, 4]), schedules.zero_bubble_h1(2, 4))
    forced = numbers(cost_model, 0, 4)
    free = numbers(cost_model, 1, 2)
    assert cost_model.seconds(forced | free) == cost_model.seconds(forced)
    costly = numbers(cost_model, 3)
    assert cost_model.seconds(forced | costly) > cost_model.seconds(forced) + 4
    importance = [1e-6 if number in free else 1.0 for number in range(5)]
    least, most = cost_model.seconds(forced), cost_model.seconds(range(5))
    for share in (0.0, 0.3, 0.9, 1.0):
        budget = least + share * (most - least)
        found = cost_model.select(select, importance, budget, forced)
        assert forced | free <= found
        assert (costly <= found) == (share == 1.0)


def test_close_to_the_best_of_all_within_the_budget() -> None:
    generator = random.Random(2)
    check_close_to_the_best(lambda: unplanned(*random_pipeline(generator)), generator)


@pytest.mark.parametrize("name", ["auto", "1f1b", "zb_h1"])
def test_a_schedule_of_its_own_keeps_the_budget_and_lets_more_in(name: str) -> None:
    generator = random.Random(3)
    gained = []
    for _ in range(8):
        units, costs, schedule = random_pipeline(generator)
        cost_model = replanned(units, costs, schedule, name)
        everything = range(len(cost_model.choice.items))
        forced = frozenset({0})
        importance = [generator.random() for _ in everything]
        least, most = cost_model.seconds(forced), cost_model.seconds(everything)
        budget = least + generator.random() * (most - least)
        found = cost_model.select(select, importance, budget, forced)
        masked, first = cost_model.masked(found), cost_model.first_trained(found)
        own = simulate_pipeline(cost_model.replanned(masked, first), masked).step_seconds
        assert min(own, cost_model.seconds(found)) <= budget * EXACT
        without = unplanned(units, costs, schedule).select(select, importance, budget, forced)
        gained.append(total(importance, found) - total(importance, without))
    assert min(gained) >= 0


def test_several_stages_a_rank() -> None:
    """Interleaved: rank 0 has stages 0 and 2, of which only the latter may train."""
    units = units_of((1, 1, 1, 1), one, one)
    schedule = schedules.interleaved(2, 4, 2)
    cost_model = unplanned(units, costs_of(units, [1] * 4), schedule)
    for first, mask in ((3, {3}), (2, {2}), (1, {1, 3}), (0, {0})):
        assert cost_model.first_trained(numbers(cost_model, *mask)) == first
    forced = numbers(cost_model, 3)
    seconds = [cost_model.seconds(numbers(cost_model, *range(n, 4))) for n in (3, 2, 1, 0)]
    assert seconds == sorted(seconds)
    for budget, first in itertools.pairwise([*seconds, 1e9]):
        found = cost_model.select(select, [1.0] * 4, budget, forced)
        assert cost_model.seconds(found) <= budget < first


def test_a_stage_whose_b_makes_all_its_gradients() -> None:
    """As one of a batch norm alone: what makes dX makes the gradients of the weights as well."""
    units = StepCosts(
        (),
        (
            UnitCost("dX:loss@1", "dX", 1.0),
            UnitCost("dX:norm@1", "dX", 1.0, ("dX:loss@1",), ("gamma", "beta")),
            UnitCost("dW:0@0", "dW", 1.0, ("dX:norm@1",), ("w0",)),
        ),
        (WeightCost("gamma", 4), WeightCost("beta", 4), WeightCost("w0", 4)),
    )
    costs = PipelineCosts((StageCost(1, 0, 1), StageCost(1, 2, 0)))
    cost_model = unplanned(units, costs, schedules.one_forward_one_backward(2, 2))
    everything = range(2)
    assert (
        cost_model.seconds(everything) == simulate_pipeline(cost_model.schedule, costs).step_seconds
    )
    budget = cost_model.seconds(everything)
    assert cost_model.select(select, [1.0, 1.0], budget, frozenset({0})) == {0, 1}


def test_more_than_there_is_time_for() -> None:
    units = units_of((2, 2), one, one)
    cost_model = unplanned(units, costs_of(units, [1, 1]), schedules.one_forward_one_backward(2, 2))
    forced = numbers(cost_model, 0)
    with pytest.raises(ValueError, match="the forced items do not fit"):
        cost_model.select(select, [1.0] * 4, 0.99 * cost_model.seconds(forced), forced)
