"""A stage in three functions computes, bit for bit, what it computes in one."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from ooodist.errors import UserError
from ooodist.graph.cut import CutStage, _Traced, cut_stage
from ooodist.graph.ops import ancestors

BATCH = 8


def dense() -> keras.Model:
    return keras.Sequential(
        [keras.Input((16,)), layers.Dense(32, activation="gelu"), layers.Dense(16)]
    )


def convolutions() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(8, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(4, 3, strides=2),
            layers.BatchNormalization(),
        ]
    )


def dropped() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((16,)),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.5, seed=1),
            layers.Dense(16),
        ]
    )


def transformer() -> keras.Model:
    x = given = keras.Input((6, 16))
    attended = layers.MultiHeadAttention(2, 8)(layers.LayerNormalization()(x), x)
    x = layers.Add()([x, attended])
    x = layers.Add()([x, layers.Dense(16)(layers.Dense(32, activation="gelu")(x))])
    return keras.Model(given, x)


def embedded() -> keras.Model:
    given = keras.Input((6,), dtype="int32")
    return keras.Model(given, layers.Dense(4)(layers.Embedding(20, 8)(given)))


def recurrent() -> keras.Model:
    return keras.Sequential([keras.Input((5, 4)), layers.GRU(8, return_sequences=True)])


def tied() -> keras.Model:
    layer = layers.Dense(16, activation="tanh")
    given = keras.Input((16,))
    return keras.Model(given, layer(layer(given)))


def two_in_two_out() -> keras.Model:
    one, other = keras.Input((8,)), keras.Input((4,))
    both = layers.Concatenate()([layers.Dense(8)(one), other])
    return keras.Model([one, other], [layers.Dense(8)(both), other])


def pooled() -> keras.Model:
    """A pooling's result is read by its gradient, and by W of the convolution behind it."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(4, 3),
        ]
    )


MODELS: list[Callable[[], keras.Model]] = [
    dense,
    convolutions,
    pooled,
    dropped,
    transformer,
    embedded,
    recurrent,
    tied,
    two_in_two_out,
]


Results = tuple[list[Any], list[Any], list[Any]]


class Stage:
    """A model as a stage, uncut and (once that is asked for) cut; and tensors for it."""

    def __init__(self, make: Callable[[], keras.Model], **options: Any) -> None:
        keras.utils.set_random_seed(1)
        self.model = make()
        self.weights = [weight.value for weight in self.model.trainable_variables]
        self.sums = [tf.Variable(tf.zeros_like(weight)) for weight in self.weights]
        self.specs = [tf.TensorSpec((BATCH, *x.shape[1:]), x.dtype) for x in self.model.inputs]
        self._options = options
        self._whole = tf.function(self._run_whole, autograph=False)

    @functools.cached_property
    def cut(self) -> CutStage:
        return cut_stage(self, self.specs, self.weights, self.sums, **self._options)

    def __call__(self, *inputs: tf.Tensor) -> list[tf.Tensor]:
        given = inputs[0] if len(inputs) == 1 else list(inputs)
        return tf.nest.flatten(self.model(given, training=True))

    def batch(self, number: int) -> list[tf.Tensor]:
        random = np.random.default_rng(number)
        return [
            tf.constant(random.integers(0, 20, spec.shape), spec.dtype)
            if spec.dtype.is_integer
            else tf.constant(random.normal(size=spec.shape), spec.dtype)
            for spec in self.specs
        ]

    def output_gradients(self, number: int) -> list[tf.Tensor]:
        random = np.random.default_rng(100 + number)
        return [
            tf.constant(random.normal(size=(BATCH, *y.shape[1:])), y.dtype)
            for y in self.model.outputs
        ]

    def whole(self, number: int) -> Results:
        """Outputs, input gradients and weight gradients of a batch, by plain TensorFlow."""
        outputs, by_input, by_weight = self._whole(
            self.batch(number), self.output_gradients(number)
        )
        return arrays(outputs), arrays(by_input), arrays(by_weight)

    def _run_whole(
        self, inputs: Sequence[tf.Tensor], output_gradients: Sequence[tf.Tensor]
    ) -> Results:
        floating = [tensor for tensor in inputs if tensor.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(floating)
            outputs = self(*inputs)
        found = tape.gradient(
            outputs, [*floating, *self.weights], output_gradients=list(output_gradients)
        )
        found = [None if g is None else tf.convert_to_tensor(g) for g in found]
        return outputs, found[: len(floating)], found[len(floating) :]

    def clear(self) -> None:
        for total in self.sums:
            total.assign(tf.zeros_like(total))

    def in_parts(self, number: int) -> Results:
        """The same in F, I and W."""
        self.clear()
        outputs, kept = self.cut.forward(self.batch(number))
        by_input, made = self.cut.input_gradient(self.output_gradients(number), kept.for_input)
        self.cut.weight_gradient(kept.for_weights, made)
        return arrays(outputs), arrays(by_input), arrays(self.sums)


class Uncut:
    """What a model computes of three batches, one after the other, and then has changed."""

    def __init__(self, make: Callable[[], keras.Model]) -> None:
        stage = Stage(make)
        self.of_batch = [stage.whole(number) for number in range(3)]
        self.state = arrays(stage.model.non_trainable_variables)


uncut_by_tensorflow = functools.cache(Uncut)  # it rewrites sums


def arrays(tensors: Sequence[Any]) -> list[Any]:
    return [None if tensor is None else tensor.numpy() for tensor in tensors if tensor is not None]


def assert_same(one: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]]) -> None:
    for these, those in zip(one, other, strict=True):
        for a, b in zip(these, those, strict=True):
            np.testing.assert_array_equal(a, b)


def assert_close(one: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]]) -> None:
    """Relative to the largest of all: some gradients, as of a key's bias, are but noise."""
    for these, those in zip(one, other, strict=True):
        largest = max((np.abs(b).max() for b in those), default=0)
        for a, b in zip(these, those, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * largest)


@pytest.fixture
def as_traced() -> Iterator[None]:
    """TensorFlow rewrites no sums; how it does that depends on what else is in a function."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    yield
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})


@pytest.mark.usefixtures("as_traced")
@pytest.mark.parametrize("make", MODELS)
def test_the_parts_compute_what_the_whole_computes(make: Callable[[], keras.Model]) -> None:
    uncut, stage = Uncut(make), Stage(make)
    for number, expected in enumerate(uncut.of_batch):
        assert_same(stage.in_parts(number), expected)
    # What F changes: moving averages, random states.
    assert_same([arrays(stage.model.non_trainable_variables)], [uncut.state])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("make", MODELS)
def test_only_last_digits_differ_where_tensorflow_rewrites(
    make: Callable[[], keras.Model], recompute: bool
) -> None:
    """It fuses ops whose results are not kept, and sums in another order."""
    uncut, stage = uncut_by_tensorflow(make), Stage(make, recompute=recompute)
    at_start = arrays(stage.model.non_trainable_variables)
    for number, expected in enumerate(uncut.of_batch):
        assert_close(stage.in_parts(number), expected)
    assert_close([arrays(stage.model.non_trainable_variables)], [uncut.state])
    for variable, value in zip(stage.model.non_trainable_variables, at_start, strict=True):
        variable.assign(value)
    w_runs_at_a_later_time(stage, uncut)


def w_runs_at_a_later_time(stage: Stage, uncut: Uncut) -> None:
    """Of three micro-batches: all F, then I in another order, then W in yet another."""
    stage.clear()
    kept = {number: stage.cut.forward(stage.batch(number))[1] for number in range(3)}
    made = {
        number: stage.cut.input_gradient(stage.output_gradients(number), kept[number].for_input)[1]
        for number in (2, 0, 1)
    }
    for number in (1, 2, 0):
        stage.cut.weight_gradient(kept[number].for_weights, made[number])
    totals = [sum(parts) for parts in zip(*(each[2] for each in uncut.of_batch), strict=True)]
    assert_close([arrays(stage.sums)], [totals])


def test_bytes_kept_of_two_dense_layers() -> None:
    """W needs the inputs of both layers; I what gelu's gradient needs; W the output gradients."""
    cut = Stage(dense).cut
    floats = 4 * BATCH
    assert cut.weight_bytes == floats * (16 + 32)
    assert cut.input_bytes >= floats * 32
    assert cut.gradient_bytes == floats * (32 + 16)
    # W makes the gradient of one weight after the other; gelu's parts are of the width of 32.
    assert 4 * 16 * 32 <= cut.workspace_bytes <= 6 * floats * 32


def test_recomputing_keeps_the_inputs_alone() -> None:
    cut, again = Stage(transformer).cut, Stage(transformer, recompute=True).cut
    assert again.input_bytes == 4 * BATCH * 6 * 16
    assert again.weight_bytes == 0
    assert again.input_bytes + again.weight_bytes < (cut.input_bytes + cut.weight_bytes) / 5
    assert again.gradient_bytes <= cut.weight_bytes + cut.gradient_bytes


def test_shapes_and_weights_are_not_kept() -> None:
    """Nothing that is kept has the shape of a weight; all that is kept is of the whole batch."""
    stage = Stage(transformer)
    _, kept = stage.cut.forward(stage.batch(0))
    _, made = stage.cut.input_gradient(stage.output_gradients(0), kept.for_input)
    shapes = {tuple(tensor.shape) for tensor in (*kept.for_input, *kept.for_weights, *made)}
    assert shapes.isdisjoint(tuple(weight.shape) for weight in stage.weights)
    assert all(shape and shape[0] % BATCH == 0 for shape in shapes), shapes


def test_the_first_stage_has_no_b() -> None:
    stage = Stage(embedded)
    assert stage.cut.input_bytes == 0
    by_input, _ = stage.cut.input_gradient(stage.output_gradients(0), [])
    assert by_input == [None]


@pytest.mark.parametrize("make", MODELS)
def test_without_input_gradients_all_is_w(make: Callable[[], keras.Model]) -> None:
    """The same outputs and gradients of the weights; I is empty, and nothing is kept for it."""
    stage = Stage(make, input_gradients=False)
    assert stage.cut.input_bytes == 0
    for number, (outputs, by_input, by_weight) in enumerate(uncut_by_tensorflow(make).of_batch):
        assert by_input or make is embedded
        assert_close(stage.in_parts(number), (outputs, [], by_weight))
    _, kept = stage.cut.forward(stage.batch(0))
    assert kept.for_input == []
    by_input, made = stage.cut.input_gradient(stage.output_gradients(0), [])
    assert by_input == [None] * len(stage.specs)
    given = [gradient.numpy().tobytes() for gradient in stage.output_gradients(0)]
    assert all(tensor.numpy().tobytes() in given for tensor in made)  # handed through


@pytest.mark.parametrize("make", MODELS)
def test_a_stage_that_only_runs_forward_keeps_nothing(make: Callable[[], keras.Model]) -> None:
    """Neither input gradients nor weights: what it sends is the same, and so are its statistics."""
    uncut, stage = uncut_by_tensorflow(make), Stage(make)
    cut = cut_stage(stage, stage.specs, [], [], input_gradients=False)
    assert (cut.input_bytes, cut.weight_bytes, cut.gradient_bytes) == (0, 0, 0)
    for number, (expected, _, _) in enumerate(uncut.of_batch):
        outputs, kept = cut.forward(stage.batch(number))
        assert kept == ([], [])
        assert_close([arrays(outputs)], [expected])
    assert_close([arrays(stage.model.non_trainable_variables)], [uncut.state])


def called_back() -> keras.Model:
    """A layer that computes in Python."""
    double = layers.Lambda(
        lambda x: tf.ensure_shape(tf.py_function(lambda a: 2 * a, [x], x.dtype), x.shape),
        output_shape=(4,),
    )
    given = keras.Input((4,))
    return keras.Model(given, layers.Dense(2)(double(layers.Dense(4)(given))))


def test_a_py_function_with_a_gradient_is_refused() -> None:
    """TensorFlow keeps the tape of its latest call, and the micro-batches' gradients would mix."""
    with pytest.raises(UserError, match=r"lambda.*EagerPyFunc is the gradient of a tf.py_function"):
        Stage(called_back).cut  # noqa: B018


@pytest.mark.parametrize("input_gradients", [True, False])
def test_only_what_is_trained_is_kept_for_w(input_gradients: bool) -> None:
    """Two layers of 16 -> 32 -> 16: W of the second needs its input, and nothing of the first."""
    uncut, stage = Stage(dense), Stage(dense)
    last = slice(2, 4)
    cut = cut_stage(
        stage,
        stage.specs,
        stage.weights[last],
        stage.sums[last],
        input_gradients=input_gradients,
    )
    floats = 4 * BATCH
    assert cut.weight_bytes == floats * 32
    assert (cut.input_bytes > 0) is input_gradients
    outputs, by_input, by_weight = uncut.whole(0)
    found, kept = cut.forward(stage.batch(0))
    gradients, made = cut.input_gradient(stage.output_gradients(0), kept.for_input)
    cut.weight_gradient(kept.for_weights, made)
    assert_close([arrays(found)], [outputs])
    assert_close([arrays(gradients)], [by_input if input_gradients else []])
    assert_close([arrays(stage.sums[last])], [by_weight[last]])
    assert all((total.numpy() == 0).all() for total in stage.sums[:2])


@pytest.mark.parametrize(
    ("is_stopped", "input_gradients"), [(True, True), (False, False), (False, True)]
)
def test_only_the_first_stage_waits_with_dx_for_dw(is_stopped: bool, input_gradients: bool) -> None:
    """So that its W keeps one output gradient beside the next, however many layers there are."""
    made = keras.Sequential([keras.Input((16,)), *(layers.Dense(16) for _ in range(3))])
    weights = [weight.value for weight in made.trainable_variables]

    def stage(given: tf.Tensor) -> list[tf.Tensor]:
        return [made(tf.stop_gradient(given) if is_stopped else given)]

    specs = [tf.TensorSpec((BATCH, 16))]
    traced = _Traced(stage, specs, weights, input_gradients=input_gradients)
    lowest, *_, highest, _ = traced.gradients
    assert isinstance(lowest, tf.Tensor)
    assert isinstance(highest, tf.Tensor)
    assert (highest.op in ancestors([lowest.op])) is (is_stopped or not input_gradients)


def test_a_pooling_is_made_again_beside_its_gradient() -> None:
    """I makes it of its input, which it keeps for that; W keeps the result, a quarter as large."""
    stage = Stage(pooled)
    _, kept = stage.cut.forward(stage.batch(0))
    before, after = (BATCH, 8, 8, 8), (BATCH, 4, 4, 8)
    assert after not in [tuple(tensor.shape) for tensor in kept.for_input]
    assert [tuple(tensor.shape) for tensor in kept.for_weights].count(after) == 1
    assert before in [tuple(tensor.shape) for tensor in kept.for_input]


def test_bytes_of_what_is_handed_on() -> None:
    """What gelu makes nobody keeps; what relu makes is kept for its gradient, and not twice."""
    floats = 4 * BATCH
    assert Stage(dense).cut.output_bytes == floats * 16
    relu = Stage(lambda: keras.Sequential([keras.Input((16,)), layers.Dense(8, "relu")]))
    assert relu.cut.output_bytes == 0


def test_mixed_precision() -> None:
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        uncut, stage = Stage(dense), Stage(dense)
        assert stage.model.outputs[0].dtype == "bfloat16"
        assert_same(stage.in_parts(0), uncut.whole(0))
    finally:
        keras.mixed_precision.set_dtype_policy(before)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize(
    "options", [{}, {"recompute": True}, {"input_gradients": False}], ids=["", "again", "first"]
)
def test_w_in_parts_adds_the_same(make: Callable[[], keras.Model], options: dict[str, Any]) -> None:
    """Bit for bit, in whatever order the buckets are, of whole layers."""
    weights = list(enumerate(make().trainable_variables))
    of_layers = itertools.groupby(weights, lambda item: item[1].path.rpartition("/")[0])
    in_turn = [[number for number, _ in group] for _, group in of_layers]
    shuffled = random.Random(len(in_turn)).sample(in_turn, len(in_turn))
    halves = [list(itertools.chain(*shuffled[half::2])) for half in range(2)]
    is_first = not options.get("input_gradients", True)
    # Of a first stage only from the last layer on.
    last_one = [[*in_turn[-1]], [*itertools.chain(*in_turn[:-1])]]
    for buckets in [in_turn[::-1]] if options else [last_one, halves]:
        stage = Stage(make, buckets=buckets, **options)
        _, kept = stage.cut.forward(stage.batch(0))
        _, made = stage.cut.input_gradient(stage.output_gradients(0), kept.for_input)
        stage.cut.weight_gradient(kept.for_weights, made)
        expected = arrays(stage.sums)
        stage.clear()
        passed_on = [*kept.for_weights, *made]
        for bucket, part in zip(buckets, stage.cut.weight_gradient_parts, strict=True):
            before = arrays(stage.sums)
            passed_on = part(*passed_on)
            for place, (one, other) in enumerate(zip(before, arrays(stage.sums), strict=True)):
                assert place in bucket or (one == other).all()
        assert not passed_on
        if is_first and make is transformer:  # TensorFlow adds a bias's gradient up otherwise
            for one, other in zip(expected, arrays(stage.sums), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        else:
            assert_same([expected], [arrays(stage.sums)])
