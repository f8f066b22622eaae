"""A model in stages is the model: outputs, gradients and what is updated, wherever it is split."""

from __future__ import annotations

import functools
import itertools
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.compat.keras_deferred import has_value, release
from ooodist.compat.keras_graph import set_mask
from ooodist.errors import UserError
from ooodist.pipeline.batches import input_structure
from ooodist.pipeline.runtime.gradients import owners_of
from ooodist.pipeline.stages import (
    Stage,
    calls_of,
    crossing_bytes,
    for_evaluation,
    parts_of_split,
    sent_specs,
    split,
)
from tests.graph import models
from tests.pipeline.models import MODELS, parts_at

layers = keras.layers


def run(stages: list[Stage], inputs: list[tf.Tensor], model: keras.Model) -> list[tf.Tensor]:
    by_symbol = {id(symbol): value for symbol, value in zip(model.inputs, inputs, strict=True)}
    sent: list[tf.Tensor] = []
    for stage in stages:
        read = [by_symbol[id(symbol)] for symbol in stage.reads]
        sent = stage.run([*read, *sent], training=True)
    return sent[: len(model.outputs)]


def results(model: keras.Model, inputs: list[tf.Tensor], stages: list[Stage] | None) -> list:
    """Outputs, gradients and the values of all variables after one pass."""
    start = [variable.numpy() for variable in model.variables]  # with those of random numbers
    with tf.GradientTape() as tape:
        if stages is None:
            whole = tf.nest.pack_sequence_as(input_structure(model), inputs)
            outputs = tf.nest.flatten(model(whole, training=True))
        else:
            outputs = run(stages, inputs, model)
        loss = tf.add_n([tf.reduce_sum(tf.cast(output, tf.float32) ** 2) for output in outputs])
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    after = [variable.numpy() for variable in model.variables]
    for variable, value in zip(model.variables, start, strict=True):
        variable.assign(value)
    return [*outputs, *map(tf.convert_to_tensor, gradients), *after]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_stages_are_the_model(name: str) -> None:
    model, inputs, _ = MODELS[name]()
    inputs = tf.nest.flatten(inputs)
    num_calls = len(calls_of(model))
    whole = results(model, inputs, None)
    # All calls but the first and the last in one stage; then each in its own.
    for cuts in (sorted({1, num_calls - 1}), list(range(1, num_calls))):
        stages = split(model, parts_at(cuts, num_calls))
        found = results(model, inputs, stages)
        for one, other in zip(whole, found, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other), err_msg=str(cuts))


@functools.cache
def built(name: str) -> keras.Model:
    return MODELS[name]()[0]


@given(data=st.data())
def test_what_crosses_is_what_is_needed_behind(data: st.DataObject) -> None:
    model = built(data.draw(st.sampled_from(["concatenating", "unet", "encoder_decoder"])))
    calls = calls_of(model)
    cuts = data.draw(st.sets(st.integers(1, len(calls) - 1), max_size=5))
    stages = split(model, parts_at(sorted(cuts), len(calls)))
    assert [call.name for stage in stages for call in stage.calls] == [c.name for c in calls]
    for before, after in itertools.pairwise(stages):
        assert [id(s) for s in before.sent] == [id(s) for s in after.received]
        made = {id(s) for stage in stages[: after.number] for c in stage.calls for s in c.outputs}
        later = {id(s) for stage in stages[after.number :] for c in stage.calls for s in c.inputs}
        later |= {id(symbol) for symbol in model.outputs}
        assert {id(symbol) for symbol in after.received} == made & later
    assert not stages[0].received
    assert {id(s) for stage in stages for s in stage.reads} == {id(s) for s in model.inputs}


def test_what_skips_a_stage_is_relayed() -> None:
    image = keras.Input((4,))
    a = layers.Dense(4, name="a")(image)
    b = layers.Dense(4, name="b")(a)
    c = layers.Dense(4, name="c")(b)
    model = keras.Model(image, layers.Add(name="sum")([a, c]))
    stages = split(model, parts_at([1, 2, 3], 4))
    sizes = [(len(stage.received), len(stage.sent)) for stage in stages]
    assert sizes == [(0, 1), (1, 2), (2, 2), (2, 1)]
    assert [len(stage.model.trainable_variables) for stage in stages] == [2, 2, 2, 0]


def test_outputs_come_from_anywhere() -> None:
    """From a stage whose result an earlier stage than the last reads, and from the data."""
    image = keras.Input((4,))
    a = layers.Dense(4, name="a")(image)
    c = layers.Dense(4, name="c")(layers.Dense(4, name="b")(a))
    model = keras.Model(image, [c, a, image])
    inputs = [tf.constant(np.random.default_rng(0).normal(size=(3, 4)), tf.float32)]
    whole = results(model, inputs, None)
    for cuts in ([1], [2], [1, 2]):
        found = results(model, inputs, split(model, parts_at(cuts, 3)))
        for one, other in zip(whole, found, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other), err_msg=str(cuts))


def test_a_layer_that_is_used_twice_has_two_calls() -> None:
    model, _, _ = models.tied_and_shared_weights()
    names = [call.name for call in calls_of(model)]
    shared = next(name for name in names if name.endswith(":3")).removesuffix(":3")
    assert [name for name in names if name.startswith(f"{shared}")][:3] == [
        shared,
        f"{shared}:2",
        f"{shared}:3",
    ]
    assert len(set(names)) == len(names)


def test_shared_variables_name_their_stages() -> None:
    model, _, _ = models.tied_and_shared_weights()
    calls = calls_of(model)
    stages = split(model, parts_at([len(calls) - 1], len(calls)))
    embedding = next(call.layer for call in calls if isinstance(call.layer, layers.Embedding))
    owners = owners_of(stages, [0, 1])
    assert [name for name, of in owners.items() if len(of) > 1] == [embedding.embeddings.path]
    whole = owners_of(split(model, [range(len(calls))]), [0])
    assert set(whole.values()) == {(0,)}


@pytest.mark.parametrize(
    "parts",
    [[range(2)], [range(3), range(4, 5)], [range(3), range(2, 5)], [range(5), range(5, 5)], []],
)
def test_parts_that_are_not_the_model(parts: list[range]) -> None:
    model = built("dense_with_dropout")
    assert len(calls_of(model)) == 4
    with pytest.raises(UserError, match="a model of 4 calls is split into parts"):
        split(model, parts)


def test_a_model_with_a_call_of_its_own() -> None:
    class Own(keras.Model):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return x

    with pytest.raises(UserError, match="model mine is a subclass"):
        calls_of(Own(name="mine"))


def test_the_whole_model_still_saves(tmp_path) -> None:
    """Keras adds the stages' calls to its layers; the model's own graph stays."""
    model, inputs, _ = MODELS["unet"]()
    before = model(inputs)
    calls = calls_of(model)
    split(model, parts_at([2, 5], len(calls)))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(inputs), before)
    assert [call.name for call in calls_of(again)] == [call.name for call in calls]


def test_sent_specs_are_those_of_a_microbatch() -> None:
    model, (source, target), _ = MODELS["encoder_decoder"]()
    calls = calls_of(model)
    stages = split(model, parts_at([len(calls) // 2], len(calls)))
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in (source, target)]
    before = [variable.numpy() for variable in model.variables]
    sent = sent_specs(model, stages, specs)
    assert [len(those) for those in sent] == [len(stage.sent) for stage in stages]
    assert all(spec.shape[0] == source.shape[0] for those in sent for spec in those)
    assert tuple(sent[-1][0].shape) == (source.shape[0], 5, models.CLASSES)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_mask_goes_along_behind_what_is_sent() -> None:
    model, tokens, _ = MODELS["masked"]()
    calls = calls_of(model)
    names = [type(call.layer).__name__ for call in calls]
    spec = [tf.TensorSpec(tokens.shape, tokens.dtype)]
    parts = parts_at([names.index("Dense") + 1, names.index("GRU") + 1], len(calls))
    behind_dense, behind_gru, _ = sent_specs(model, split(model, parts), spec)
    *_, mask = behind_dense
    assert mask == tf.TensorSpec(tokens.shape, tf.bool)
    assert all(spec.dtype != tf.bool for spec in behind_gru)  # which ends it
    sent = crossing_bytes(model, calls, len(tokens))[parts[1].start - 1]
    assert sent == sum(spec.shape.num_elements() * spec.dtype.size for spec in behind_dense)


def test_a_mask_that_was_taken_off_is_not_sent() -> None:
    """Attention takes it off what it is given, and attaches it to what it makes."""
    model, *_ = MODELS["masked_to_the_end"]()
    names = [call.name for call in calls_of(model)]
    assert [name.rstrip("_0123456789") for name in names[:2]] == [
        "embedding",
        "multi_head_attention",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stages = split(model, [range(1), range(1, 2), range(2, len(names))])
    assert [stage.received_masks for stage in stages] == [(), (0,), (1,)]
    assert [stage.sent_masks for stage in stages[:2]] == [(0,), (1,)]


class MaskedInTraining(keras.layers.Layer):
    """Takes the mask off what it is given, unless it trains."""

    def __init__(self) -> None:
        super().__init__(name="masked_in_training")
        self.supports_masking = True

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        return None

    def call(self, x: tf.Tensor, training: bool = False, mask: Any = None) -> tf.Tensor:
        made = x * 1.0
        if training:
            set_mask(made, mask)
        return made


def test_an_evaluation_has_masks_of_its_own() -> None:
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, 8, mask_zero=True)(tokens)
    model = keras.Model(tokens, layers.Dense(2)(MaskedInTraining()(x)))
    names = [call.name for call in calls_of(model)]
    at = names.index("masked_in_training")
    stages = split(model, parts_at([at, at + 1], len(names)))
    spec = [tf.TensorSpec((4, 6), tf.int32)]
    assert [stage.sent_masks for stage in stages[:2]] == [(0,), (0,)]
    assert len(sent_specs(model, stages, spec)[1]) == 2
    evaluated = for_evaluation(model, stages)
    assert [stage.sent_masks for stage in evaluated[:2]] == [(0,), ()]
    assert [stage.received_masks for stage in evaluated[1:]] == [(0,), ()]
    assert len(sent_specs(model, evaluated, spec, training=False)[1]) == 1
    plain = split(chain(), [range(2), range(2, 4)])
    assert for_evaluation(chain(), plain) == plain


def test_shapes_are_found_without_the_values_of_weights() -> None:
    for name in ("encoder_decoder", "masked"):
        model, inputs, _ = MODELS[name]()
        for variable in model.variables:
            release(variable, "rank 1")
        calls = calls_of(model)
        stages = for_evaluation(model, split(model, parts_at([len(calls) // 2], len(calls))))
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in tf.nest.flatten(inputs)]
        sent = sent_specs(model, stages, specs, training=False)
        assert sent[-1][0].shape[-1] == models.CLASSES
        assert not any(map(has_value, model.variables))


def text(length: int | None) -> keras.Model:
    sentence = keras.Input((), dtype="string")
    tokens = layers.TextVectorization(
        output_sequence_length=length, vocabulary=["a", "b"], name="numbers"
    )(sentence)
    x = layers.Embedding(4, 8, mask_zero=True, name="embedding")(tokens)
    return keras.Model(sentence, layers.Dense(2)(layers.GRU(8)(x)))


def test_a_layer_that_loses_the_number_of_samples() -> None:
    """That of a micro-batch is known, also of the mask, which goes along."""
    model, sentences = text(5), tf.constant(["a b", "b", "a c b", ""])
    calls = calls_of(model)
    parts = parts_at([*range(1, len(calls))], len(calls))
    spec = [tf.TensorSpec((4,), tf.string)]
    for training in (True, False):
        stages = split(model, parts)
        stages = stages if training else for_evaluation(model, stages)
        sent = sent_specs(model, stages, spec, training=training)
        assert all(each.shape.is_fully_defined() for those in sent for each in those), sent
        embedded = next(stage for stage in stages if stage.calls[0].name == "embedding")
        *tensors, mask = sent[embedded.number]
        assert (4, 5, 8) in [tuple(each.shape) for each in tensors]
        assert mask == tf.TensorSpec((4, 5), tf.bool)
        made: list[tf.Tensor] = []
        for stage in stages:
            read = [sentences] if stage.reads else []
            made = stage.run([*read, *made], training=training, samples=4)
        np.testing.assert_array_equal(made[0], model(sentences, training=training))


def test_a_length_that_depends_on_the_data_is_named() -> None:
    model = text(None)
    stages = split(model, parts_at([1], len(calls_of(model))))
    expected = r"output of numbers, in stage 0, has shape \(4, None\).*size of axis 1"
    with pytest.raises(UserError, match=expected):
        sent_specs(model, stages, [tf.TensorSpec((4,), tf.string)])


def test_a_shape_that_depends_on_the_data() -> None:
    model = keras.Model(image := keras.Input((None, 4)), layers.Dense(2)(layers.Dense(3)(image)))
    stages = split(model, [range(1), range(1, 2)])
    with pytest.raises(UserError, match="must have the same shape for every micro-batch"):
        sent_specs(model, stages, [tf.TensorSpec((4, None, 4), tf.float32)])


def chain() -> keras.Model:
    x = image = keras.Input((4,))
    for width in (8, 16, 4):
        x = layers.Dense(width, name=f"to_{width}")(x)
    return keras.Model(image, layers.Add(name="around")([x, image]))


def test_stages_begin_with_the_layers_that_are_named() -> None:
    calls = calls_of(chain())
    assert parts_of_split(calls, ["to_16", "around"]) == (range(1), range(1, 3), range(3, 4))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["to_15"], r"parallel\.split names to_15.*did you mean to_1?6"),
        (["to_4", "to_16"], "in the order of the model, which is to_8, to_16, to_4, around"),
        (["to_8"], "with which the second and the further stages begin"),
        (["to_4", "to_4"], "in the order of the model"),
    ],
)
def test_names_that_are_no_split(names: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parts_of_split(calls_of(chain()), names)


def test_what_crosses_has_its_bytes() -> None:
    """The input is read from the data by whoever needs it, and not sent."""
    model = chain()
    assert crossing_bytes(model, calls_of(model), 3) == [4 * 3 * 8, 4 * 3 * 16, 4 * 3 * 4, 0]
    model, _, _ = MODELS["unet"]()
    crossing = crossing_bytes(model, calls_of(model), 1)
    first, pooled = 8 * 8 * 4, 4 * 4 * 4  # numbers of the first skip, and of what is pooled
    assert crossing[:2] == [4 * first, 4 * (first + pooled)]
