"""What layers are measured to cost: all of it, at the layers that cost it; the model stays."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from ooodist.pipeline.layers.measure import measure_layers, weight_bytes_by_call
from ooodist.pipeline.stages import calls_of
from ooodist.step.sharding.state import size_of
from tests.pipeline.models import MODELS

SAMPLES, WIDTH = 64, 256


def test_seconds_and_bytes_are_where_they_belong() -> None:
    image = keras.Input((32,))
    x = keras.layers.Dense(WIDTH, activation="relu", name="small")(image)
    x = keras.layers.Dense(16 * WIDTH, activation="relu", name="large")(x)
    x = keras.layers.Dense(WIDTH, activation="relu", name="narrow")(x)
    model = keras.Model(image, keras.layers.Dense(4, name="head")(x))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batch = np.ones((2 * SAMPLES, 32), np.float32), np.zeros(2 * SAMPLES, np.int32)
    before = [value.copy() for value in model.get_weights()]
    costs = {cost.name: cost for cost in measure_layers(model, batch, 2)}
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)

    assert list(costs) == ["small", "large", "narrow", "head"]
    # 1 : 16 : 16 in multiplications, and more than that of the head.
    assert costs["large"].seconds > 2 * costs["small"].seconds
    assert costs["large"].forward > 2 * costs["head"].forward
    for cost in costs.values():
        assert cost.forward > 0
        assert cost.weight_gradient > 0
        assert cost.update > 0
    small = 4 * (32 * WIDTH + WIDTH)
    assert costs["small"].state_bytes == 3 * small  # weights, and Adam's two moments
    assert costs["small"].optimizer_bytes == 2 * small
    assert costs["small"].base_bytes == 4 * small  # and gradients, added up
    assert costs["small"].exchanged_bytes == small
    # A micro-batch's activations, which W of the next layer needs.
    assert costs["large"].weight_bytes >= 4 * SAMPLES * 16 * WIDTH
    assert costs["small"].sent_bytes == 4 * SAMPLES * WIDTH
    assert costs["head"].sent_bytes == 0


@pytest.mark.parametrize("name", ["unet", "encoder_decoder", "one_layer_again_and_again"])
def test_every_call_has_a_cost(name: str) -> None:
    model, inputs, labels = MODELS[name]()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    costs = measure_layers(model, (inputs, labels), 1, steps=1)
    assert [cost.name for cost in costs] == [call.name for call in calls_of(model)]
    weights = sum(size_of(weight) for weight in model.trainable_variables)
    assert sum(cost.base_bytes for cost in costs) == 2 * weights  # and gradients
    assert sum(cost.seconds for cost in costs) > 0
    if name == "unet":  # both skips cross the middle
        middle = costs[len(costs) // 2 - 3]
        assert middle.sent_bytes > min(cost.sent_bytes for cost in costs[:-1])


def test_a_weight_of_several_layers_is_held_once() -> None:
    model, _, _ = MODELS["tied_and_shared_weights"]()
    model.compile(keras.optimizers.SGD(momentum=0.9))
    calls = calls_of(model)
    held = weight_bytes_by_call(model, calls)
    sizes = {variable.path: size_of(variable) for variable in model.variables}
    assert sum(each.gradients for each in held) == sum(
        sizes[weight.path] for weight in model.trainable_variables
    )
    assert sum(each.state - each.gradients for each in held) == sum(sizes.values())
    uses = [v.path for call in calls for v in getattr(call.layer, "trainable_variables", [])]
    assert len(uses) > len(set(uses))


def test_weights_of_one_path_are_held_by_their_own_calls() -> None:
    model, _, _ = MODELS["twins"]()
    model.compile(keras.optimizers.Adam())
    calls = calls_of(model)
    held = dict(zip((call.name for call in calls), weight_bytes_by_call(model, calls), strict=True))
    size = sum(size_of(variable) for variable in model.get_layer("decoder").variables)
    assert held["encoder"] == held["decoder"] == (3 * size, size, 2 * size)
    assert held["encoder:2"] == (0, 0, 0)
