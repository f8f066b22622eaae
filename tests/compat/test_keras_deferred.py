"""Variables without values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.compat import keras_deferred
from ooodist.compat.keras_deferred import has_value, made_without_values
from ooodist.errors import UserError
from tests.compat.contract import Contract


def build() -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,), dtype="int32")
    hidden = keras.layers.Embedding(20, 16)(inputs)
    hidden = keras.layers.MultiHeadAttention(2, 8, dropout=0.1)(hidden, hidden)
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.GRU(4)(keras.layers.Dropout(0.2)(hidden))
    return keras.Model(inputs, keras.layers.Dense(3, kernel_initializer="orthogonal")(hidden))


def test_values_given_later_are_those_of_the_whole_model() -> None:
    expected = [variable.numpy() for variable in build().variables]
    model = made_without_values(build)
    assert model.built
    assert not any(map(has_value, model.variables))
    for variable in reversed(model.variables):  # in any order
        keras_deferred.initialize(variable)
        assert has_value(variable)
    for variable, value in zip(model.variables, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda: keras.optimizers.Adam(0.1, use_ema=True, weight_decay=0.1),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
        lambda: keras.optimizers.Adafactor(0.1),  # makes some variables from values
    ],
)
def test_optimizers_are_built_without_memory(
    make_optimizer: Callable[[], keras.optimizers.Optimizer],
) -> None:
    whole, model = build(), made_without_values(build)
    for variable in model.variables[2:]:
        keras_deferred.release(variable, "nobody")
    optimizers = make_optimizer(), make_optimizer()
    for each in optimizers:
        each.exclude_from_weight_decay(var_names=["kernel"])
    keras_deferred.build_without_values(optimizers[0], model.trainable_variables)
    optimizers[1].build(whole.trainable_variables)
    assert optimizers[0].built
    assert not any(has_value(v) for v in optimizers[0].variables if len(v.shape))
    assert not any(map(has_value, model.variables))

    own = [1, 4]  # this rank's weights
    for at in own:
        value = whole.trainable_variables[at].numpy()
        keras_deferred.set_value(model.trainable_variables[at], value)
    keras_deferred.train_those_with_values(optimizers[0], model.trainable_variables)
    # Names begin with those of layers, which count on from model to model.
    for variable, twin in zip(optimizers[0].variables, optimizers[1].variables, strict=True):
        if not has_value(variable):
            keras_deferred.initialize(variable)
        np.testing.assert_array_equal(variable.numpy(), twin.numpy())
    for _ in range(2):
        for optimizer, weights in zip(optimizers, (model, whole), strict=True):
            every = range(len(whole.trainable_variables)) if weights is whole else own
            trained = [weights.trainable_variables[at] for at in every]
            optimizer.apply([tf.ones(weight.shape) for weight in trained], trained)
    for optimizer, weights in zip(optimizers, (model, whole), strict=True):
        optimizer.finalize_variable_values(weights.trainable_variables)  # as fit does
    for at in own:
        found, expected = (each.trainable_variables[at].numpy() for each in (model, whole))
        np.testing.assert_array_equal(found, expected)
    names = [whole.trainable_variables[at].path.replace("/", "_") for at in own]
    for variable, twin in zip(optimizers[0].variables, optimizers[1].variables, strict=True):
        if not len(variable.shape) or any(name in twin.path for name in names):
            np.testing.assert_array_equal(variable.numpy(), twin.numpy(), err_msg=twin.path)


def test_later_variables_are_made_as_ever() -> None:
    made_without_values(build)
    with keras.StatelessScope():  # initializes those that were made in it
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
    assert all(map(has_value, layer.variables))
    assert has_value(tf.Variable(1.0))


def test_values_are_set_and_released() -> None:
    model = made_without_values(build)
    kernel = model.layers[-1].kernel
    value = np.arange(12, dtype=np.float32).reshape(4, 3)
    for factor in (1, 2):  # without a value, and with one
        keras_deferred.set_value(kernel, factor * value)
        np.testing.assert_array_equal(kernel.numpy(), factor * value)
    keras_deferred.release(kernel, "rank 3 does")
    assert not has_value(kernel)
    for read in (kernel.numpy, lambda: kernel + 1, model.layers[-1].get_weights):
        with pytest.raises(UserError, match="rank 3 does"):
            read()
    keras_deferred.set_value(kernel, value)
    np.testing.assert_array_equal(kernel.numpy(), value)


def _handle() -> None:
    model = made_without_values(build)
    kernel = model.layers[-1].kernel
    with keras_deferred.standing_in([kernel], with_memory=False):
        assert kernel.value.shape == (4, 3)
        assert kernel.value.trainable
        assert kernel.value.read_value().numpy().size == 0  # nothing is there
    assert not has_value(kernel)


CONTRACTS = [
    Contract(
        "resource_variable_ops.UninitializedVariable",
        "tensorflow",
        keras_deferred.standing_in,
        _handle,
    )
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_tensorflow_keeps(contract: Contract) -> None:
    contract.hold()


@pytest.mark.parametrize("with_memory", [False, True])
def test_stand_ins_leave_no_trace(with_memory: bool) -> None:
    """Pending ones are given their first value later, released ones stay so, others keep theirs."""
    expected = [variable.numpy() for variable in build().variables]
    model = made_without_values(build)
    released, held, *pending = model.variables
    keras_deferred.release(released, "rank 3 does")
    keras_deferred.set_value(held, expected[1])
    with contextlib.suppress(ZeroDivisionError):  # however it ends
        run_with_stand_ins(model, with_memory=with_memory)
    assert [has_value(v) for v in model.variables] == [v is held for v in model.variables]
    np.testing.assert_array_equal(held.numpy(), expected[1])
    with pytest.raises(UserError, match="rank 3 does"):
        released.numpy()
    for variable, value in zip(pending, expected[2:], strict=True):
        keras_deferred.initialize(variable)
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


def run_with_stand_ins(model: keras.Model, *, with_memory: bool) -> None:
    tokens = tf.ones((5, 8), tf.int32)
    with keras_deferred.standing_in(model.variables, with_memory=with_memory):
        traced = tf.function(trained(model)).get_concrete_function(tokens)
        if with_memory:
            assert all(np.isfinite(each).all() for each in traced(tokens))
        else:
            with pytest.raises(tf.errors.OpError):
                traced(tokens)
        raise ZeroDivisionError


def trained(model: keras.Model) -> Callable[[tf.Tensor], list[tf.Tensor]]:
    """Gradients of all weights."""

    def gradients(tokens: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tokens, training=False))
        found = tape.gradient(loss, model.trainable_variables)
        assert None not in found
        return [tf.convert_to_tensor(gradient) for gradient in found]

    return gradients


def test_released_variables_have_shapes() -> None:
    model = build()
    for variable in model.variables:
        keras_deferred.release(variable, "nobody")
    spec = tf.TensorSpec((5, 8), tf.int32)
    with pytest.raises(UserError, match="nobody"):
        tf.function(model).get_concrete_function(spec)
    with keras_deferred.standing_in(model.variables, with_memory=False):
        traced = tf.function(model).get_concrete_function(spec)
        with pytest.raises(tf.errors.OpError):  # eagerly, zeros would be believed
            model(tf.zeros((5, 8), tf.int32))
    assert traced.output_shapes == (5, 3)


def test_what_is_made_from_a_value_has_it() -> None:
    variable = made_without_values(lambda: keras.Variable(np.arange(3.0)))
    np.testing.assert_array_equal(variable.numpy(), [0, 1, 2])
    optimizer = made_without_values(lambda: keras.optimizers.Adam(0.25))
    assert float(optimizer.learning_rate) == 0.25


def a_model() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])


def that_sets_weights() -> keras.Model:
    model = a_model()
    model.set_weights([np.ones((2, 2)), np.zeros(2)])
    return model


def that_fails() -> object:
    return keras.layers.Dense(2).no_such_attribute


def test_functions_that_set_values_are_refused() -> None:
    with pytest.raises(UserError, match="sets values of its variables"):
        made_without_values(that_sets_weights)
    with pytest.raises(AttributeError, match="no_such_attribute"):
        made_without_values(that_fails)
    assert has_value(keras.Variable(keras.initializers.Zeros(), shape=(2,)))


def test_functions_that_load_values_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.weights.h5"
    a_model().save_weights(file)

    def that_loads() -> None:
        a_model().load_weights(file)

    with pytest.raises(UserError, match="sets values of its variables"):
        made_without_values(that_loads)
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save_weights(file)
    with pytest.raises(ValueError, match="shape"):
        made_without_values(that_loads)


def test_a_file_is_loaded_into_those_that_have_values(tmp_path: Path) -> None:
    expected, model = build(), made_without_values(build)
    for weight in expected.weights:
        weight.assign(tf.cast(weight + 1, weight.dtype))
    expected.save_weights(tmp_path / "x.weights.h5")
    own = model.layers[-1].kernel
    keras_deferred.initialize(own)
    with keras_deferred.assigning_to_those_with_values():
        model.load_weights(tmp_path / "x.weights.h5")
    np.testing.assert_array_equal(own.numpy(), expected.layers[-1].kernel.numpy())
    assert [has_value(weight) for weight in model.weights] == [w is own for w in model.weights]
    other = next(weight for weight in model.weights if weight is not own)
    with pytest.raises(AttributeError, match="assign"):  # only in the block
        other.assign(tf.zeros(other.shape))


def test_some_may_differ_from_the_first_that_does() -> None:
    layer = a_layer()
    kernel, bias = layer.get_weights()
    with keras_deferred.assigning_to_those_with_values(may_differ=layer.weights) as stay:
        layer.bias.assign(bias + 1)
        assert stay == []
        layer.kernel.assign(np.ones((3, 4)))
        layer.bias.assign(bias + 2)
        assert [variable.name for variable in stay] == ["kernel", "bias"]
        with pytest.raises(ValueError, match="shape"):
            a_layer().kernel.assign(np.ones((3, 4)))
    np.testing.assert_array_equal(layer.kernel.numpy(), kernel)
    np.testing.assert_array_equal(layer.bias.numpy(), bias + 1)


def test_memory_first_and_initial_values_later() -> None:
    expected = build().layers[-1].kernel.numpy()
    kernel = made_without_values(build).layers[-1].kernel
    fill = keras_deferred.initialize_later(kernel)
    np.testing.assert_array_equal(kernel.numpy(), np.zeros((4, 3)))
    kernel.assign(kernel + 1)
    fill()
    np.testing.assert_array_equal(kernel.numpy(), expected)


def a_layer() -> keras.layers.Dense:
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    return layer


def _deferred() -> None:
    kernel = made_without_values(a_layer).kernel
    assert not has_value(kernel)
    assert tuple(kernel.shape) == (3, 2)
    keras_deferred.initialize(kernel)
    assert has_value(kernel)


def _filled_later() -> None:
    kernel = made_without_values(a_layer).kernel
    keras_deferred.initialize_later(kernel)()
    assert np.abs(kernel.numpy()).max() > 0


def _filled_elsewhere() -> None:
    kernel = made_without_values(a_layer).kernel
    value = tf.Variable(keras_deferred.initial_value(kernel, (5,)))
    with keras_deferred.with_values([(kernel, value)]):
        assert kernel.value is value
    assert not has_value(kernel)


def _set_and_released() -> None:
    kernel = made_without_values(a_layer).kernel
    keras_deferred.set_value(kernel, np.ones((3, 2)))
    assert kernel.numpy().sum() == 6
    keras_deferred.release(kernel, "nobody")
    assert not has_value(kernel)
    with keras_deferred.standing_in([kernel], with_memory=True):
        assert kernel.numpy().sum() == 0


def _assigned() -> None:
    layer = made_without_values(a_layer)
    keras_deferred.initialize(layer.bias)
    with keras_deferred.assigning_to_those_with_values():
        layer.set_weights([np.ones((3, 2)), np.ones(2)])
        with pytest.raises(ValueError, match="shape"):
            layer.kernel.assign(np.ones((2, 3)))
        with pytest.raises(ValueError, match="shape"):
            layer.bias.assign(np.ones(3))
    assert not has_value(layer.kernel)
    np.testing.assert_array_equal(layer.bias.numpy(), [1, 1])


def _shapes() -> None:
    layer = a_layer()
    for variable in layer.variables:
        keras_deferred.release(variable, "nobody")
    shapes: list[tf.TensorShape] = []
    spec = tf.TensorSpec((5, 3), tf.float32)
    with keras_deferred.standing_in(layer.variables, with_memory=False):
        tf.function(lambda tensor: shapes.append(layer(tensor).shape)).get_concrete_function(spec)
        shapes.append(layer.kernel.value.shape)
    assert [tuple(shape) for shape in shapes] == [(5, 2), (3, 2)]


def _optimizer() -> None:
    layer, optimizer = a_layer(), keras.optimizers.SGD(1.0, momentum=0.9)
    keras_deferred.build_without_values(optimizer, layer.trainable_variables)
    for variable in optimizer.variables:
        if not has_value(variable):
            keras_deferred.initialize(variable)
    keras_deferred.train_those_with_values(optimizer, layer.trainable_variables)
    before = layer.kernel.numpy()
    optimizer.apply([tf.ones((3, 2)), tf.ones(2)], layer.trainable_variables)
    np.testing.assert_allclose(layer.kernel.numpy(), before - 1, rtol=1e-6)


CONTRACTS = [
    Contract(name, "keras", used_by, check)
    for name, used_by, check in (
        ("Variable._initialize_with_initializer", keras_deferred.made_without_values, _deferred),
        ("Variable._deferred_initialize", keras_deferred.initialize, _deferred),
        ("Variable._deferred_initialize, not", keras_deferred.without_initializing, _deferred),
        ("Variable._value", keras_deferred.has_value, _deferred),
        ("Variable._initializer", keras_deferred.initialize_later, _filled_later),
        ("Variable._initializer of a shape", keras_deferred.initial_value, _filled_elsewhere),
        ("Variable._value for a block", keras_deferred.with_values, _filled_elsewhere),
        ("Variable._initializer of a value", keras_deferred.set_value, _set_and_released),
        ("Variable.assign", keras_deferred.assigning_to_those_with_values, _assigned),
        ("Variable._value of None", keras_deferred.release, _set_and_released),
        ("Variable._value in a block", keras_deferred.standing_in, _set_and_released),
        ("Variable._value without memory", keras_deferred.standing_in, _shapes),
        ("Optimizer._var_key", keras_deferred.build_without_values, _optimizer),
        (
            "Optimizer._trainable_variables_indices",
            keras_deferred.train_those_with_values,
            _optimizer,
        ),
    )
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_contract(contract: Contract) -> None:
    contract.hold()
