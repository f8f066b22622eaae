"""What selections cost: by hand, and against the steps that are really traced."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest

from ooodist import models
from ooodist.elastic.selection.items import Selectable
from ooodist.elastic.timing import (
    calibrated,
    fitted_waiting,
    masked,
    needed_until,
    reduced,
    scaled,
    selectable_of,
)
from ooodist.engines.local import LocalEngine
from ooodist.graph.digest import model_digest
from ooodist.planner.costs import SavedTensor, StepCosts, UnitCost, WeightCost
from ooodist.profiler.saved_tensors import saved_tensors
from ooodist.profiler.step import StepToMeasure, trace_step
from ooodist.step.backward import OrderedBackward
from ooodist.step.exchange import GradientExchange
from ooodist.step.execution import Execution
from tests.graph.models import MODELS
from tests.models.samples import SMALL, loss_of, random_batch
from tests.profiler.models import batch, measure_compute, with_everything

EXACT = 1e-9  # relative; sums of floats


def unit(name: str, seconds: float, needs: str = "", weights: str = "") -> UnitCost:
    kind, waits = name.partition(" ")[0], tuple(filter(None, needs.split(", ")))
    return UnitCost(name, kind, seconds, waits, tuple(weights.split()))


def costs_of(*backward: UnitCost, forward: float = 50.0, others: Sequence[str] = ()) -> StepCosts:
    """Each update takes 1/8 s; the forward pass and the rest are one unit each."""
    names = [name for each in backward for name in each.weights] + list(others)
    return StepCosts(
        forward=(UnitCost("F", "F", forward, weights=tuple(names)),),
        backward=backward,
        weights=tuple(WeightCost(name, 4, update_seconds=0.125) for name in names),
        middle_seconds=5.0,
        launch_seconds=2.0,
    )


CHAIN = costs_of(
    unit("dX c", 1),
    unit("dW c", 10, "dX c", "c/kernel c/bias"),
    unit("dX b", 2, "dX c"),
    unit("dW b", 20, "dX b", "b/kernel"),
    unit("dX a", 4, "dX b"),
    unit("dW a", 40, "dX a", "a/kernel"),
)


def names_of(choice: Selectable) -> list[str]:
    return [item.name for item in choice.items]


def needs_of(choice: Selectable) -> list[str]:
    return [" ".join(sorted(item.needs)) for item in choice.items]


def test_the_items_of_a_chain() -> None:
    choice = selectable_of(CHAIN)
    assert names_of(choice) == ["c", "b/kernel", "a/kernel"]
    assert needs_of(choice) == ["dX c", "dX b dX c", "dX a dX b dX c"]
    assert [item.seconds for item in choice.items] == [10.25, 20.125, 40.125]
    assert choice.path_seconds == {"dX a": 4, "dX b": 2, "dX c": 1}
    assert choice.head == (0,)


@pytest.mark.parametrize(
    ("selected", "seconds"),
    [((), 57), ((0,), 68.25), ((1,), 80.125), ((2,), 104.125), ((0, 1, 2), 134.5)],
)
def test_the_seconds_of_selections(selected: Sequence[int], seconds: float) -> None:
    assert selectable_of(CHAIN).seconds(selected) == seconds


def test_an_item_needs_its_own_branch_alone() -> None:
    costs = costs_of(
        unit("dX top", 1, "", "top/bias"),
        unit("dX left", 2, "dX top"),
        unit("dW left", 4, "dX left", "left/kernel"),
        unit("dX right", 8, "dX top"),
        unit("dW right", 16, "dX right", "right/kernel"),
        unit("dX both", 32, "dX left, dX right"),
        unit("dW both", 64, "dX both", "both/kernel"),
    )
    choice = selectable_of(costs)
    assert needs_of(choice)[1:3] == ["dX left dX top", "dX right dX top"]
    assert choice.seconds([1]) - choice.fixed_seconds == 1 + 2 + 4 + 0.125
    assert choice.seconds([1, 2]) - choice.fixed_seconds == 1 + 2 + 4 + 8 + 16 + 2 * 0.125
    assert choice.full_seconds - choice.fixed_seconds == 127 + 4 * 0.125


def test_a_tied_weight_pays_for_both_of_its_parts() -> None:
    """Its gradient is a sum: one part is computed early, next to the output."""
    costs = costs_of(
        unit("dX out", 1),
        unit("dW tied@1", 10, "dX out"),
        unit("dX hidden", 2, "dX out"),
        unit("dW hidden", 20, "dX hidden", "hidden/kernel"),
        unit("dX tied", 4, "dX hidden"),
        unit("dW tied", 40, "dX tied, dW tied@1", "tied"),
    )
    choice = selectable_of(costs)
    assert names_of(choice) == ["hidden/kernel", "tied"]
    assert choice.seconds([0]) - choice.fixed_seconds == 1 + 2 + 20.125
    assert choice.seconds([1]) - choice.fixed_seconds == 1 + 10 + 2 + 4 + 40.125
    assert choice.full_seconds == pytest.approx(costs.compute_seconds + 2.0)


def test_what_a_path_computes_anyway_is_paid_for_like_the_path() -> None:
    """The gradients of a batch norm's gamma and beta come out of the unit that goes on below."""
    costs = costs_of(
        unit("dX out", 1),
        unit("dX norm", 2, "dX out", "norm/gamma norm/beta"),
        unit("dW conv", 4, "dX norm", "conv/kernel"),
    )
    choice = selectable_of(costs)
    assert needs_of(choice) == ["dX norm dX out"] * 2
    assert choice.items[0].seconds == 0.25  # the updates
    assert choice.seconds([0]) - choice.fixed_seconds == 1 + 2 + 0.25
    assert choice.seconds([1]) - choice.fixed_seconds == 1 + 2 + 4 + 0.125
    assert choice.seconds([0, 1]) - choice.fixed_seconds == 1 + 2 + 0.25 + 4 + 0.125


def test_a_weight_that_only_a_regularizer_touches_costs_its_update() -> None:
    choice = selectable_of(costs_of(*CHAIN.backward, others=["decayed"]))
    assert names_of(choice)[-1] == "decayed"
    assert choice.seconds([3]) == choice.fixed_seconds + 0.125
    assert choice.items[3].needs == frozenset()
    assert choice.head == (0,)


def test_weights_that_are_done_together_are_one_item() -> None:
    choice = selectable_of(costs_of(unit("dX x", 1, "", "net/a/kernel net/b/kernel net/b/bias")))
    assert names_of(choice) == ["net/a+net/b"]
    assert choice.weights([0]) == {"net/a/kernel", "net/b/kernel", "net/b/bias"}


def test_a_reduced_step_has_what_is_selected_and_the_way_to_it() -> None:
    costs = reduced(CHAIN, {"b/kernel"})
    assert [each.name for each in costs.backward] == ["dX c", "dX b", "dW b"]
    assert [weight.name for weight in costs.weights] == ["b/kernel"]
    assert costs.forward[0].weights == ("b/kernel",)
    assert costs.forward[0].seconds == CHAIN.forward[0].seconds


def test_a_reduced_step_keeps_tensors_for_those_that_still_run() -> None:
    tensors = (
        SavedTensor(1, "F", ("dX c", "dW a")),
        SavedTensor(2, "F", ("dW a",)),
        SavedTensor(3, "dW a", ()),
        SavedTensor(4, "dW b", ()),
    )
    found = reduced(StepCosts(CHAIN.forward, CHAIN.backward, CHAIN.weights, tensors), {"b/kernel"})
    assert found.tensors == (SavedTensor(1, "F", ("dX c",)), SavedTensor(4, "dW b", ()))


def test_of_all_weights_nothing_is_left_out() -> None:
    assert reduced(CHAIN, {weight.name for weight in CHAIN.weights}) == CHAIN


def test_units_are_needed_by_what_comes_later() -> None:
    until = needed_until(CHAIN.backward)
    assert until["dW b"] == {"dX c", "dX b", "dW b"}


# Real models: what is foretold is what is traced


@dataclass(frozen=True)
class Sample:
    """A model whose step was traced, with costs that nobody measured."""

    model: keras.Model
    batch: Any
    traced: StepToMeasure
    costs: StepCosts
    choice: Selectable


FAMILIES = ("resnet20_batch", "gpt", "bert_untied")
OTHERS = ("tied_and_shared_weights", "several_inputs_and_outputs", "concatenating", "regularized")


@cache
def sample(name: str) -> Sample:
    keras.utils.set_random_seed(1)
    if name in SMALL:
        config, data = SMALL[name]
        model, given = models.build(config, data), random_batch(data, 4)
        loss = loss_of(data)
    else:
        model, *given = MODELS[name]()
        given = tuple(given)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    traced = trace_step(model, given, order="inorder")
    costs = made_up(traced)
    return Sample(model, given, traced, costs, selectable_of(costs))


def made_up(traced: StepToMeasure) -> StepCosts:
    """Random seconds for each unit of a step."""
    chance = random.Random(3)
    step = traced.step

    def priced(units: Sequence[Any]) -> tuple[UnitCost, ...]:
        return tuple(
            UnitCost(u.name, u.kind, chance.random(), tuple(sorted(u.needs)), u.variables)
            for u in units
        )

    return StepCosts(
        forward=priced(step.forward),
        backward=priced(step.backward),
        weights=tuple(WeightCost(w.name, 4, "float32", chance.random()) for w in traced.weights),
        tensors=saved_tensors(step, traced.owner_of, traced.weights),
        middle_seconds=chance.random(),
    )


def traced_with(found: Sample, selected: Collection[str]) -> tuple[str, list[str]]:
    """The digest and the units of the step that is traced with this selection."""
    backward = OrderedBackward(GradientExchange(LocalEngine()), selected=selected)
    Execution(found.model, backward).trace(found.traced.batches)
    (step,) = backward.steps
    return model_digest(step.backward), [each.name for each in step.backward]


def random_selection(found: Sample, seed: int) -> frozenset[int]:
    """The head, and few or many of the others."""
    chance = random.Random(seed)
    share = chance.random()
    numbers = range(len(found.choice.items))
    return frozenset(found.choice.head) | {n for n in numbers if chance.random() < share}


@pytest.mark.parametrize(
    ("name", "seed"), [*((name, 0) for name in FAMILIES), *itertools.product(OTHERS, range(2))]
)
def test_a_masked_step_is_the_one_that_is_traced(name: str, seed: int) -> None:
    found = sample(name)
    weights = found.choice.weights(random_selection(found, seed))
    costs, digest = masked(found.costs, found.traced, weights)
    assert (digest, [each.name for each in costs.backward]) == traced_with(found, weights)


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_the_masked_step_of_all_weights_is_the_full_one(name: str) -> None:
    found = sample(name)
    everything = found.choice.weights(range(len(found.choice.items)))
    costs, digest = masked(found.costs, found.traced, everything)
    assert digest == found.traced.digest
    assert costs == found.costs


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_all_ways_to_tell_the_seconds_of_a_selection_agree(name: str) -> None:
    found = sample(name)
    for seed in range(20):
        selected = random_selection(found, seed)
        weights = found.choice.weights(selected)
        seconds = found.choice.seconds(selected)
        assert reduced(found.costs, weights).compute_seconds == pytest.approx(seconds, rel=EXACT)
        costs, _ = masked(found.costs, found.traced, weights)
        assert costs.compute_seconds == pytest.approx(seconds, rel=EXACT)


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_a_masked_step_keeps_no_tensor_for_what_does_not_run(name: str) -> None:
    found = sample(name)
    weights = found.choice.weights(random_selection(found, 1))
    costs, _ = masked(found.costs, found.traced, weights)
    units = {each.name for each in (*costs.forward, *costs.backward)}
    for tensor in costs.tensors:
        assert {tensor.made_by, *tensor.used_by} <= units
    before = sum(tensor.num_bytes for tensor in found.costs.tensors)
    assert sum(tensor.num_bytes for tensor in costs.tensors) <= before


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_every_trained_weight_is_in_one_item(name: str) -> None:
    found = sample(name)
    weights = [weight for item in found.choice.items for weight in item.weights]
    assert sorted(weights) == sorted(weight.name for weight in found.traced.weights)
    assert len(set(names_of(found.choice))) == len(found.choice.items)


def test_each_output_of_a_model_has_a_head() -> None:
    found = sample("several_inputs_and_outputs")
    outputs = {layer.name for layer in found.model.layers[-2:]}
    heads = {weight.partition("/")[0] for weight in found.choice.weights(found.choice.head)}
    assert heads == outputs


def test_calibrating_leaves_the_model_as_it_is() -> None:
    def state(model: keras.Model) -> list[bytes]:
        held = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
        return [np.asarray(variable.numpy()).tobytes() for variable in held]

    model = with_everything("adam")
    model.fit(*batch(), batch_size=32, verbose=0, shuffle=False)
    costs = measure_compute(model, batch(1), steps=3)
    before = state(model)
    calibration, checks = calibrated(model, batch(1), costs, LocalEngine(), accumulate=2)
    assert state(model) == before
    found = scaled(costs, calibration)

    assert [check.name for check in checks] == ["all", "half", "head"]
    assert all(check.measured > 0 for check in checks)
    choice = selectable_of(found)
    assert choice.full_seconds == pytest.approx(checks[0].calibrated, rel=EXACT)
    assert choice.seconds(choice.head) == pytest.approx(checks[2].calibrated, rel=EXACT)
    assert [each.name for each in found.backward] == [each.name for each in costs.backward]


def test_waiting_is_fitted_to_what_was_measured() -> None:
    computing, simulated = [3.0, 2.0, 1.0], [7.0, 4.0, 1.0]
    half = [c + 0.5 * (s - c) for c, s in zip(computing, simulated, strict=True)]
    assert fitted_waiting(computing, simulated, half) == pytest.approx(0.5)
    faster_than_computing = [2.5, 1.5, 0.9]
    assert fitted_waiting(computing, simulated, faster_than_computing) == 0.0
