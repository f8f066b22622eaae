"""F, I and W of a stage: the loss that was compiled, what is kept, and what is added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.compat.keras_deferred import release
from ooodist.errors import UserError
from ooodist.pipeline.runtime.work import StageWork, check_losses, compiled_loss, loss_of_outputs
from ooodist.pipeline.stages import calls_of, sent_specs, split
from tests.graph import models
from tests.pipeline.models import parts_at

layers = keras.layers


@pytest.mark.parametrize("weighted", [False, True])
def test_the_compiled_loss_is_without_what_layers_add(weighted: bool) -> None:
    model, x, y = models.regularized()
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


def test_losses_are_found_without_the_values_of_weights() -> None:
    """This rank may have none of the weights of the layers that add to the loss."""
    shared = layers.Dense(8, kernel_regularizer="l2")
    image = keras.Input((8,))
    model = keras.Model(image, layers.Dense(2, kernel_regularizer="l2")(shared(shared(image))))
    model.compile("sgd", "mse")
    for variable in model.variables:
        release(variable, "rank 1")
    with pytest.raises(UserError, match=f"layer {shared.name} adds to the loss"):
        check_losses(split(model, parts_at([1], len(calls_of(model)))))
    y, outputs = tf.zeros((4, 2)), tf.ones((4, 2))
    loss = compiled_loss(model, (y,))
    assert float(loss([outputs], [y])) == 1.0


def test_a_loss_of_the_class_is_without_what_layers_add() -> None:
    class Doubled(keras.Model):
        """Tells training by its loss."""

        def compute_loss(
            self,
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            training: bool = True,
        ) -> tf.Tensor:
            loss = super().compute_loss(x, y, y_pred, sample_weight, training)
            return loss + 1.0 if training else loss

    image = keras.Input((8,))
    model = Doubled(image, layers.Dense(2, kernel_regularizer="l2")(image))
    model.compile("sgd", "mse")
    y, outputs = tf.zeros((4, 2)), tf.ones((4, 2))
    for training, expected in ((True, 2.0), (False, 1.0)):
        found = loss_of_outputs(model, y, outputs, None, training=training)
        assert float(found) == pytest.approx(expected, rel=1e-6)


def test_without_a_compiled_loss_nothing_is_added() -> None:
    model, x, y = models.regularized()
    model.compile("sgd")
    assert float(compiled_loss(model, (y,))([model(x)], [y])) == 0.0


class Penalty(keras.layers.Layer):
    def call(self, x: tf.Tensor) -> tf.Tensor:
        self.add_loss(keras.ops.mean(x))
        return x


def test_without_any_loss() -> None:
    image = keras.Input((8,))
    penalized = keras.Model(image, layers.Dense(2)(Penalty()(image)))
    plain = keras.Model(image, layers.Dense(2)(image))
    for model in (penalized, plain):
        model.compile("sgd")
        model(tf.ones((4, 8)))
    y = tf.zeros((4, 2))
    assert float(compiled_loss(penalized, (y,))([y], [y])) == 0.0
    with pytest.raises(UserError, match=f"model {plain.name} was compiled without a loss"):
        compiled_loss(plain, (y,))


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
    assert first.cut.input_bytes == 0  # no input gradient: nothing is kept for one

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


class Dense:
    """Four dense layers in two stages, and micro-batches for them."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(4)
        self.model = keras.Sequential(
            [keras.Input((8,)), *(layers.Dense(8, activation="tanh") for _ in range(4))]
        )
        self.model.compile("sgd", "mse")
        self.weights = self.model.trainable_variables
        self.stages = split(self.model, parts_at([2], 4))
        self.spec = tf.TensorSpec((3, 8))
        [self.sent, _] = sent_specs(self.model, self.stages, [self.spec])
        random = np.random.default_rng(5)
        self.x, self.y = (
            [tf.constant(random.normal(size=(3, 8)), tf.float32) for _ in range(2)]
            for _ in range(2)
        )
        self.accumulators: dict[str, tf.Variable] = {}

    def first(self, **options: Any) -> StageWork:
        work = StageWork(self.stages[0], [self.spec], [], [], None, self.accumulators, **options)
        work.begin([[x] for x in self.x])
        return work

    def last(self, **options: Any) -> StageWork:
        loss = compiled_loss(self.model, (self.y[0],))
        work = StageWork(
            self.stages[1], [], self.sent, [self.spec], loss, self.accumulators, **options
        )
        work.begin([[], []], [[y] for y in self.y])
        return work

    def gradients(self, wanted: Sequence[keras.Variable]) -> list[tf.Tensor]:
        """Of the mean loss of the micro-batches."""
        with tf.GradientTape() as tape:
            losses = [
                self.model.compute_loss(y=y, y_pred=self.model(x))
                for x, y in zip(self.x, self.y, strict=True)
            ]
            mean = tf.add_n(losses) / len(losses)
        return tape.gradient(mean, [weight.value for weight in wanted])

    def assert_added_up(self, wanted: Sequence[keras.Variable]) -> None:
        """These have their gradients in their accumulators, and others have no accumulator."""
        assert set(self.accumulators) == {weight.path for weight in wanted}
        for weight, gradient in zip(wanted, self.gradients(wanted), strict=True):
            np.testing.assert_allclose(
                self.accumulators[weight.path].numpy(), gradient.numpy(), rtol=0, atol=1e-6
            )


def test_a_stage_that_only_runs_forward() -> None:
    """It keeps nothing, and the stage behind it sends nothing back."""
    dense = Dense()
    first = dense.first(trained=[], sends_gradients=False, forward_only=True)
    last = dense.last(sends_gradients=False)
    assert first.cut.input_bytes == first.cut.weight_bytes == first.cut.gradient_bytes == 0
    assert last.cut.input_bytes == 0
    outputs: list[np.ndarray] = []
    last.on_outputs = lambda sent, _: outputs.append(sent[0].numpy())
    for number in range(2):
        last.forward(number, first.forward(number, []))
        assert first._saved == first._for_weights == first._seeds == {}
        assert last.input_gradient(number, []) == []
        last.weight_gradient(number)
    dense.assert_added_up(dense.weights[4:])
    for found, x in zip(outputs, dense.x, strict=True):
        np.testing.assert_allclose(found, dense.model(x).numpy(), rtol=0, atol=1e-6)


def test_only_some_weights_of_a_stage() -> None:
    """The last layer and the second: what the first and third need for W is not kept."""
    dense = Dense()
    wanted = [*dense.weights[2:4], *dense.weights[6:]]
    first = dense.first(trained=wanted[:2], sends_gradients=False)
    last = dense.last(trained=wanted[2:])
    assert first.variables == wanted[:2]
    for number in range(2):
        last.forward(number, first.forward(number, []))
    for number in range(2):
        assert first.input_gradient(number, last.input_gradient(number, [])) == []
        last.weight_gradient(number)
        first.weight_gradient(number)
    dense.assert_added_up(wanted)
    everything = Dense()
    assert first.cut.weight_bytes < everything.first(sends_gradients=False).cut.weight_bytes
    assert last.cut.weight_bytes < everything.last().cut.weight_bytes


def test_a_stage_on_the_way_trains_nothing() -> None:
    """It has no weight that is selected, but one before it has: it sends gradients back."""
    dense = Dense()
    wanted = dense.weights[:4]
    first, last = dense.first(sends_gradients=False), dense.last(trained=[])
    assert last.cut.weight_bytes == last.cut.gradient_bytes == 0
    for number in range(2):
        last.forward(number, first.forward(number, []))
        first.input_gradient(number, last.input_gradient(number, []))
        last.weight_gradient(number)
        first.weight_gradient(number)
    dense.assert_added_up(wanted)


@pytest.mark.parametrize("whole", [0, 1, 2])
def test_last_gradients_are_told_once_whatever_has_parts(whole: int) -> None:
    """The W's of the first micro-batches are whole, those of the others in parts."""
    dense = Dense()
    wanted = dense.weights[4:]
    first = dense.first(trained=[], sends_gradients=False, forward_only=True)
    last = dense.last(sends_gradients=False, buckets=[wanted[2:], wanted[:2]])
    complete: dict[str, np.ndarray] = {}

    def note(variables: Sequence[keras.Variable]) -> None:
        for variable in variables:
            assert variable.path not in complete
            complete[variable.path] = dense.accumulators[variable.path].numpy()

    last.on_last_gradient = note
    for number in range(2):
        last.forward(number, first.forward(number, []))
        last.input_gradient(number, [])
    for number in range(whole):
        last.weight_gradient(number)
    for part in range(last.parts):
        for number in range(whole, 2):
            last.weight_gradient_part(number, part)
    dense.assert_added_up(wanted)
    assert complete.keys() == dense.accumulators.keys()
    for path, gradient in complete.items():
        np.testing.assert_array_equal(gradient, dense.accumulators[path].numpy())
