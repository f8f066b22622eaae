"""What layers are measured to cost: all of it, at the layers that cost it; the model stays."""

from __future__ import annotations

from typing import NamedTuple

import keras
import numpy as np
import pytest

from ooodist.pipeline.layers.measure import measure_layers
from ooodist.pipeline.measure import Noted, seconds_by_kind
from ooodist.pipeline.stages import calls_of
from ooodist.planner.pipeline.actions import Action
from tests.pipeline.models import MODELS


class Ran(NamedTuple):
    """As of ooodist.pipeline.runtime.runtime, which starts MPI where it is imported."""

    action: Action
    start: float
    end: float
    waited: float


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
    assert costs["small"].exchanged_bytes == 4 * (32 * WIDTH + WIDTH)
    assert costs["small"].base_bytes == 4 * (32 * WIDTH + WIDTH)  # gradients, added up
    # A micro-batch's activations, which W of the next layer needs.
    assert costs["large"].weight_bytes >= 4 * SAMPLES * 16 * WIDTH
    assert costs["small"].sent_bytes == 4 * SAMPLES * WIDTH
    assert costs["head"].sent_bytes == 0


@pytest.mark.parametrize("name", ["unet", "encoder_decoder", "one_layer_again_and_again"])
def test_every_call_has_a_cost(name: str) -> None:
    model, inputs, labels = MODELS[name]()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    costs = measure_layers(model, (inputs, labels), 1)
    assert [cost.name for cost in costs] == [call.name for call in calls_of(model)]
    assert sum(cost.base_bytes for cost in costs) == sum(
        4 * int(np.prod(weight.shape)) for weight in model.trainable_variables
    )
    assert sum(cost.seconds for cost in costs) > 0
    if name == "unet":  # both skips cross the middle
        middle = costs[len(costs) // 2 - 3]
        assert middle.sent_bytes > min(cost.sent_bytes for cost in costs[:-1])


def test_what_moves_messages_counts_as_the_action_that_needs_it() -> None:
    """By medians; what was waited does not count."""
    ran = [
        Ran(Action(1, "RECV_F", 0), 0.0, 9.0, 8.5),
        Ran(Action(1, "F", 0), 9.0, 11.0, 0.0),
        Ran(Action(1, "F", 1), 11.0, 14.0, 0.0),
        Ran(Action(1, "F", 2), 14.0, 54.0, 0.0),  # something else had the core
        Ran(Action(1, "SEND_F", 0), 54.0, 54.25, 0.0),
        Ran(Action(1, "I", 0), 55.0, 59.0, 0.0),
        Ran(Action(1, "SEND_B", 0), 59.0, 59.5, 0.0),
        Ran(Action(1, "W", 0), 60.0, 61.0, 0.0),
        Ran(Action(3, "F", 0), 61.0, 62.0, 0.0),
    ]
    assert seconds_by_kind(ran) == {(1, "F"): 3.75, (1, "I"): 4.5, (1, "W"): 1.0, (3, "F"): 1.0}


def test_the_first_step_that_is_noted_does_not_count() -> None:
    noted = Noted()
    for step in range(3):
        noted.note([Ran(Action(0, "F", step), 0.0, 1.0, 0.0)], float(step))
    assert [each.action.microbatch for each in noted.ran] == [1, 2]
    assert noted.updates == [1.0, 2.0]
