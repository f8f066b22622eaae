"""A range of calls as a model that trains alone: its gradients are those of the whole model."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.compat.keras_graph import mask_of
from ooodist.compat.keras_model import build_with
from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.layers.part import Part, part_of
from ooodist.pipeline.stages import calls_of, sent_specs, split
from ooodist.profiler.state import preserved
from ooodist.profiler.step import trace_step
from tests.pipeline.models import MODELS, parts_at


def parts_of(model: keras.Model, batch: object, cuts: Sequence[int]) -> list[Part]:
    splitter = BatchSplitter(model, batch, 2)
    stages = split(model, parts_at(cuts, len(calls_of(model))))
    sent = sent_specs(model, stages, splitter.specs()[0])
    return [
        part_of(
            stage,
            sent[stage.number - 1] if stage.number else (),
            splitter,
            trains_before=any(each.model.trainable_variables for each in stages[: stage.number]),
            is_last=stage is stages[-1],
        )
        for stage in stages
    ]


def compiled(name: str) -> tuple[keras.Model, object]:
    model, inputs, labels = MODELS[name]()
    losses = [keras.losses.SparseCategoricalCrossentropy(from_logits=True) for _ in model.outputs]
    model.compile("sgd", losses if len(losses) > 1 else losses[0])
    build_with(model, (inputs, labels))
    return model, (inputs, labels)


@pytest.mark.parametrize(
    "name",
    [
        "unet",
        "encoder_decoder",
        "masked",
        "masked_to_the_end",
        "with_operations",
        "tied_and_shared_weights",
        "several_inputs_and_outputs",
        "partly_frozen",
        "regularized",
        "mixed_float16",
    ],
)
def test_parts_have_all_calls_and_train(name: str) -> None:
    model, batch = compiled(name)
    calls = calls_of(model)
    cut = len(calls) // 2
    before = [variable.numpy() for variable in model.variables]
    for part, own in zip(parts_of(model, batch, [cut]), (calls[:cut], calls[cut:]), strict=True):
        found = {at: call.layer for at, call in zip(part.numbers, part.calls, strict=True)}
        found.pop(None, None)
        assert found == {number: call.layer for number, call in enumerate(own)}
        traced = trace_step(part.model, part.batch)
        gradients = {weight.name for weight in traced.weights}
        weights = {v.path for call in own for v in getattr(call.layer, "trainable_variables", [])}
        assert weights <= gradients  # beside those of scales
        assert len(gradients - weights) <= 2 * (len(part.calls) - len(own))
        with preserved(traced.variables):
            traced.run()
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


def test_the_last_part_has_the_loss_of_the_model() -> None:
    """With sample weights, and what its own layers add, but not what others do."""
    image = keras.Input((4,))
    x = keras.layers.Dense(6, kernel_regularizer=keras.regularizers.L2(100.0))(image)
    output = keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.5))(x)
    model = keras.Model(image, output)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    draw = np.random.default_rng(1)
    y, weights = draw.integers(0, 3, 8), draw.uniform(size=8).astype(np.float32)
    batch = draw.normal(size=(8, 4)).astype(np.float32), y, weights
    _, part = parts_of(model, batch, [1])
    (received,), *targets = part.batch
    assert not np.any(received)
    x = draw.normal(size=received.shape).astype(np.float32)
    found = part.model.compute_loss(x, *targets[:1], part.model([x]), targets[1])
    kernel, bias = model.layers[-1].get_weights()
    expected = loss(y[:4], x @ kernel + bias, weights[:4]) + 0.5 * np.sum(kernel**2)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_gradients_of_what_is_received_are_computed_if_somebody_needs_them() -> None:
    def scales(*, trainable: bool) -> list[int]:
        image = keras.Input((4,))
        x = keras.layers.Dense(4, trainable=trainable)(keras.layers.Rescaling(2.0)(image))
        model = keras.Model(image, keras.layers.Dense(4)(keras.layers.Dense(4)(x)))
        model.compile("sgd", "mean_squared_error")
        batch = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
        parts = parts_of(model, batch, [1, 2])
        for part in parts:
            trace_step(part.model, part.batch)  # there is always something to train
        own = [{v.path for v in part.model.trainable_variables} for part in parts]
        model_own = {v.path for v in model.variables}
        return [len(paths - model_own) for paths in own]

    # Nothing before the first Dense trains. The parts that train nothing have a scale at their end.
    assert scales(trainable=True) == [2, 0, 2]
    assert scales(trainable=False) == [2, 2, 0]


def test_masks_are_there_and_hide_nothing() -> None:
    model, batch = compiled("masked_to_the_end")
    part = parts_of(model, batch, [1])[1]
    [received] = part.batch[0]
    masks = []

    def run(tensor: tf.Tensor) -> None:
        masks.append(mask_of(part.calls[0].layer(tensor)))

    tf.function(run, autograph=False)(received)
    assert part.numbers[0] is None
    assert tf.get_static_value(masks[0]).all()
    assert masks[0].shape == received.shape[:2]
