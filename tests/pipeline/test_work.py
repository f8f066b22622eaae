"""F, B and W of a stage: the loss that was compiled, what is kept, and what is added up."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.errors import UserError
from ooodist.pipeline.stages import calls_of, sent_specs, split
from ooodist.pipeline.work import StageWork, check_losses, compiled_loss
from tests.backprop import models
from tests.pipeline.models import parts_at

layers = keras.layers


@pytest.mark.parametrize("weighted", [False, True])
def test_the_compiled_loss_is_without_what_layers_add(weighted: bool) -> None:
    model, x, y = models.regularised()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    weights = (tf.constant([1.0, 2.0, 0.0, 0.5]),) if weighted else ()
    outputs = model(x, training=True)
    targets = (y, *weights)
    found = compiled_loss(model, targets)([outputs], tf.nest.flatten(targets))
    each = keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
    expected = tf.reduce_mean(each * weights[0] if weighted else each)
    assert len(model.losses) == 3
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_what_layers_add_is_added_once() -> None:
    shared = layers.Dense(8, kernel_regularizer="l2")
    image = keras.Input((8,))
    model = keras.Model(image, layers.Dense(2)(shared(shared(image))))
    calls = len(calls_of(model))
    check_losses(split(model, parts_at([2], calls)))
    with pytest.raises(UserError, match=f"layer {shared.name} adds to the loss .* stages 0 and 1"):
        check_losses(split(model, parts_at([1], calls)))


def test_two_stages_of_a_rank_add_to_one_accumulator() -> None:
    """Tied weights: the gradient is the sum over both, over all micro-batches."""
    model, x, y = models.tied_and_shared_weights()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    microbatches = 3
    num_calls = len(calls_of(model))
    stages = split(model, parts_at([num_calls // 2], num_calls))
    spec, label = tf.TensorSpec.from_tensor(x), tf.TensorSpec.from_tensor(y)
    [sent, _] = sent_specs(model, stages, [spec])
    accumulators: dict[str, tf.Variable] = {}
    loss = compiled_loss(model, (y,))
    first = StageWork(stages[0], [spec], [], [], None, accumulators)
    last = StageWork(stages[1], [], sent, [label], loss, accumulators)
    assert set(accumulators) == {weight.path for weight in model.trainable_variables}
    assert first.kept_bytes[0] == 0  # no input gradient: nothing is kept for one

    batches = [(x + number) % 5 for number in range(microbatches)]
    first.begin([[batch] for batch in batches])
    last.begin([[]] * microbatches, [[y]] * microbatches)
    for number in range(microbatches):
        last.forward(number, first.forward(number, []))
    for number in range(microbatches):
        first.input_gradient(number, last.input_gradient(number, []))
    for number in reversed(range(microbatches)):  # whenever it suits
        first.weight_gradient(number)
        last.weight_gradient(number)

    with tf.GradientTape() as tape:
        losses = [model.compute_loss(y=y, y_pred=model(b, training=True)) for b in batches]
        mean = tf.add_n(losses) / microbatches
    weights = model.trainable_variables
    expected = tape.gradient(mean, [weight.value for weight in weights])
    for weight, gradient in zip(weights, expected, strict=True):
        gradient = tf.convert_to_tensor(gradient).numpy()
        np.testing.assert_allclose(
            accumulators[weight.path].numpy(), gradient, rtol=0, atol=1e-6 * np.abs(gradient).max()
        )
