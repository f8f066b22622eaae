"""Units measured stage by stage are those of the whole model, and cost about what they cost there.

That no rank has the whole model meanwhile is checked over MPI, in pipeline_worker.py.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.elastic.stage_units import (
    Measured,
    assigned,
    measure_stage_units,
    merged,
    stage_of_unit,
    unit_of_stage,
)
from ooodist.elastic.timing import needed_until, selectable_of
from ooodist.engines.local import LocalEngine
from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.stages import calls_of
from ooodist.planner.costs import StepCosts
from tests.pipeline.models import MODELS, parts_at

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def measured(
    model: keras.Model, batch: object, cuts: list[int], own: set[int] | None = None
) -> StepCosts:
    """As measured by one rank, stage after stage."""
    stages = parts_at(cuts, len(calls_of(model)))
    own = set(range(len(stages))) if own is None else own
    return measure_stage_units(BatchSplitter(model, batch, 2), stages, own, LocalEngine())


def dense() -> tuple[keras.Model, object]:
    """The third and fourth of five layers take longer than the others together."""
    x = image = keras.Input((64,))
    for width in (256, 256, 4096, 256):
        x = keras.layers.Dense(width, activation="gelu")(x)
    model = keras.Model(image, keras.layers.Dense(4)(x))
    model.compile("sgd", LOSS)
    return model, (np.ones((64, 64), np.float32), np.zeros(64, np.int32))


def test_units_cost_what_they_cost_in_the_whole_model() -> None:
    model, batch = dense()
    before = [value.copy() for value in model.get_weights()]
    whole, stages = measured(model, batch, []), measured(model, batch, [3])
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)

    def seconds(costs: StepCosts, kind: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for unit in costs.backward:
            if unit.kind == kind:
                name = unit.name.rpartition("@")[0]
                found[name] = found.get(name, 0.0) + unit.seconds
        return found

    for kind in ("dX", "dW"):
        one, other = seconds(whole, kind), seconds(stages, kind)
        assert one.keys() == other.keys()
        assert len(one) == 5  # dX: of the outputs of all layers; dW: of their weights
        large = sorted(one, key=lambda name: one[name])[-2:]
        for name in large:
            assert 0.2 < other[name] / one[name] < 5, (name, one, other)  # others use the cores
        if kind == "dW":  # the two large ones, of more than 9 parts in 10 of all multiplications
            assert sum(other[name] for name in large) > 0.6 * sum(other.values()), other
    assert all(weight.update_seconds > 0 for weight in stages.weights)
    sizes = {variable.path: 4 * int(np.prod(variable.shape)) for variable in model.variables}
    assert {weight.name: weight.num_bytes for weight in stages.weights} == sizes
    # The same can be selected, for the same weights.
    assert [item.weights for item in selectable_of(whole).items] == [
        item.weights for item in selectable_of(stages).items
    ]


@pytest.mark.parametrize(
    ("name", "cuts"), [("unet", [4]), ("tied_and_shared_weights", [2]), ("encoder_decoder", [3, 8])]
)
def test_units_are_chains_over_the_stages(name: str, cuts: list[int]) -> None:
    model, inputs, labels = MODELS[name]()
    model.compile("sgd", LOSS)
    costs = measured(model, tf.nest.map_structure(tf.convert_to_tensor, (inputs, labels)), cuts)
    trained = [name for unit in costs.backward for name in unit.weights]
    assert sorted(trained) == sorted(variable.path for variable in model.trainable_variables)
    needed_until(costs.backward)  # each unit needs only those before it
    stage_with = {
        variable.path: stage
        for stage, at in reversed(list(enumerate(parts_at(cuts, len(calls_of(model))))))
        for call in calls_of(model)[at.start : at.stop]
        for variable in getattr(call.layer, "trainable_variables", [])
    }
    for unit in costs.backward:
        stage = stage_of_unit(unit.name)
        for weight in unit.weights:  # complete in the first stage that has the weight
            assert stage == stage_with[weight]
    seconds = [0.0] * (len(cuts) + 1)
    for unit in costs.backward:
        seconds[stage_of_unit(unit.name)] += unit.seconds
    assert all(seconds), seconds


def test_what_no_rank_measures_takes_no_time() -> None:
    model, batch = dense()
    costs = measured(model, batch, [2], own={1})
    for unit in costs.backward:
        assert (unit.seconds > 0) == (stage_of_unit(unit.name) == 1), unit


def test_each_rank_sends_what_it_has_measured() -> None:
    one = Measured({0: {"dW:a": 1.0}}, {"a": 1.0, "tied": 2.0})
    other = Measured({3: {"dW:b": 2.0, "dX:b": 0.5}}, {"b": 1.0, "tied": 3.0})
    found = merged([one.as_text(), Measured().as_text(), other.as_text()])
    assert found.units == {0: {"dW:a": 1.0}, 3: {"dW:b": 2.0, "dX:b": 0.5}}
    assert found.updates == {"a": 1.0, "b": 1.0, "tied": 3.0}


NAMES = st.sampled_from([f"{kind}:{name}" for kind in ("F", "dX", "dW") for name in "abc"])


@given(st.dictionaries(NAMES, st.integers(0, 100)), st.dictionaries(NAMES, st.integers(1, 9)))
def test_seconds_are_neither_lost_nor_made(measured: dict[str, int], units: dict[str, int]) -> None:
    found = assigned({name: float(spent) for name, spent in measured.items()}, units)
    assert found.keys() == units.keys()
    for name, spent in found.items():
        assert spent >= measured.get(name, 0) - 1e-9

    def kind_and_pass(name: str) -> tuple[str, bool]:
        kind = name.partition(":")[0]
        return kind, kind == "F"

    def has_taker(name: str) -> bool:
        """One of its kind, or one of its pass that was not measured itself."""
        kind, is_forward = kind_and_pass(name)
        return any(
            kind_and_pass(unit)[0] == kind
            or (unit not in measured and kind_and_pass(unit)[1] == is_forward)
            for unit in units
        )

    for is_forward in (False, True):  # none moves from one pass to the other
        taken = [n for n in measured if kind_and_pass(n)[1] == is_forward and has_taker(n)]
        own = [name for name in units if kind_and_pass(name)[1] == is_forward]
        assert sum(found[n] for n in own) == pytest.approx(sum(measured[n] for n in taken))
    if not measured.keys() - units.keys():
        assert found == {name: measured.get(name, 0) for name in units}


def test_names_that_differ_are_assigned_by_kind() -> None:
    # A part whose input is scaled: it calls the gradient of its input by the scale.
    measured = {"dX:scale": 3.0, "dW:b": 2.0}
    assert assigned(measured, {"dX:a": 5, "dW:b": 2}) == {"dX:a": 3.0, "dW:b": 2.0}
    # Only one weight needs this gradient, so it is part of that weight's dW.
    assert assigned(measured, {"dW:a": 5, "dW:b": 2}) == {"dW:a": 3.0, "dW:b": 2.0}
    # Two units for one: by their ops.
    assert assigned({"dX:a": 3.0}, {"dX:b": 1, "dX:c": 2}) == {"dX:b": 1.0, "dX:c": 2.0}
    # Nothing before the call trains: no gradient of its input is computed.
    assert assigned({"dX:scale": 3.0}, {"F:b": 1}) == {"F:b": 0.0}


def test_names_tell_the_stage() -> None:
    assert stage_of_unit(unit_of_stage("dW:embedding@3", 12)) == 12
