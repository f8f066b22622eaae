"""BERT as published: its size, what padding does, and that it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.compat.keras_deferred import made_without_values
from ooodist.config.keras_objects import make_loss, make_metrics
from ooodist.config.named_arguments import NamedArguments
from ooodist.errors import UserError
from ooodist.models import MODELS, build
from ooodist.models.base import PRETRAINING
from ooodist.models.metrics import NO_LABEL, LabeledAccuracy
from ooodist.models.transformers.bert import TEXTS, Bert12Config

from .samples import SMALL_BLOCKS, Description


def description(length: int = 8, predictions: int = 2, vocabulary: int = 20) -> Description:
    shapes = dict.fromkeys(("token_ids", "segment_ids", "is_token"), length) | {
        "chosen": predictions
    }
    spec = {name: tf.TensorSpec((size,), tf.int32) for name, size in shapes.items()}
    return Description(spec, PRETRAINING, vocabulary)


def samples(count: int = 4, seed: int = 3) -> dict[str, np.ndarray]:
    """Five tokens and three of padding."""
    chance = np.random.default_rng(seed)
    tokens = chance.integers(5, 20, (count, 8))
    tokens[:, 5:] = 0
    return {
        "token_ids": tokens.astype(np.int32),
        "segment_ids": np.tile(np.int32([0, 0, 0, 1, 1, 0, 0, 0]), (count, 1)),
        "is_token": np.tile(np.int32([1, 1, 1, 1, 1, 0, 0, 0]), (count, 1)),
        "chosen": np.tile(np.int32([1, 4]), (count, 1)),
    }


def small(**settings: Any) -> keras.Model:
    keras.utils.set_random_seed(5)
    return build(Bert12Config(**(SMALL_BLOCKS | settings)), description())


@pytest.mark.parametrize(
    ("name", "layers", "count"),
    [
        # Of the published checkpoints: encoder, pooler, both heads.
        ("bert_12", 12, 110_106_428),
        ("bert_24", 24, 336_226_108),
        # 12 and 24 layers of 12 x 1024^2 + 13 x 1024 more.
        ("bert_36", 36, 336_226_108 + 12 * 12_596_224),
        ("bert_48", 48, 336_226_108 + 24 * 12_596_224),
    ],
)
def test_size(name: str, layers: int, count: int) -> None:
    config = MODELS[name].config
    assert config().layers == layers
    data = description(512, 76, 30_522)
    models = (
        made_without_values(lambda number=number: build(config(layers=number), data))
        for number in (1, 2)
    )
    one, two = (model.count_params() for model in models)
    assert one + (layers - 1) * (two - one) == count


def test_nobody_looks_at_padding() -> None:
    model, x = small(), samples()
    assert model.output_names == ["masked", "next"]  # Keras's logs are named by them
    padded = x | {"token_ids": np.where(x["is_token"] == 1, x["token_ids"], 7)}
    for before, after in zip(model(x), model(padded), strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)
    changed = x | {"token_ids": np.where(np.arange(8) == 3, 7, x["token_ids"])}
    for before, after in zip(model(x), model(changed), strict=True):
        assert not np.allclose(before, after)


def test_segments_count() -> None:
    model, x = small(), samples()
    for before, after in zip(
        model(x), model(x | {"segment_ids": 0 * x["segment_ids"]}), strict=True
    ):
        assert not np.allclose(before, after)


def of_texts(task: str = "classification", **settings: Any) -> keras.Model:
    keras.utils.set_random_seed(5)
    spec = dict.fromkeys(TEXTS, tf.TensorSpec((8,), tf.int32))
    data = Description(spec, task, 3 if task == "classification" else None, num_tokens=20)
    return build(Bert12Config(**(SMALL_BLOCKS | settings)), data)


@pytest.mark.parametrize(("task", "outputs"), [("classification", 3), ("regression", 1)])
def test_texts_have_segments_and_padding(task: str, outputs: int) -> None:
    model, x = of_texts(task), {name: samples()[name] for name in TEXTS}
    found = model(x)
    assert found.shape == (4, outputs)
    padded = x | {"token_ids": np.where(x["is_token"] == 1, x["token_ids"], 7)}
    np.testing.assert_allclose(found, model(padded), rtol=1e-5, atol=1e-6)
    for name, other in (("token_ids", 7), ("segment_ids", 0)):
        assert not np.allclose(found, model(x | {name: np.full_like(x[name], other)}))


def test_the_vocabulary_of_texts_is_that_of_the_data() -> None:
    assert of_texts().get_layer("tokens").weights[0].shape == (20, 16)
    assert of_texts(vocabulary_size=30).get_layer("tokens").weights[0].shape == (30, 16)
    with pytest.raises(UserError, match="vocabulary_size is 10, but the data has 20 different"):
        of_texts(vocabulary_size=10)


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
@pytest.mark.parametrize("tied", [True, False])
def test_it_starts_from_the_weights_of_pre_training(
    tmp_path: Path, ending: str, tied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """All but its head, which starts as without the file."""
    file, pretrained = tmp_path / f"pretrained{ending}", small(tie_embeddings=tied)
    for weight in pretrained.weights:
        weight.assign(weight + 1)
    pretrained.save(file) if ending == ".keras" else pretrained.save_weights(file)
    settings = {"tie_embeddings": tied}
    fresh = {weight.path: weight.numpy() for weight in of_texts(**settings).weights}
    known = {weight.path: weight.numpy() for weight in pretrained.weights}
    with caplog.at_level("INFO", "ooodist"):
        tuned = of_texts(weights=str(file), **settings)
    for weight in tuned.weights:
        source = fresh if weight.path.startswith("predictions") else known
        np.testing.assert_array_equal(weight, source[weight.path], err_msg=weight.path)
    assert "predictions/kernel, predictions/bias are not there, but head_norm, " in caplog.text


def test_pre_training_of_other_sizes_does_not_fit(tmp_path: Path) -> None:
    file = str(tmp_path / "pretrained.weights.h5")
    small(layers=3).save_weights(file)
    with pytest.raises(UserError, match=r"does not fit model bert_12: the file has layer block_2_"):
        of_texts(weights=file)
    small(mlp_width=24).save_weights(file)
    with pytest.raises(UserError, match=r"does not fit model bert_12: layer block_0_mlp_expand"):
        of_texts(weights=file)


def test_outputs_are_at_the_chosen_places() -> None:
    model, x = small(), samples()
    masked, follows = model(x)
    assert masked.shape == (4, 2, 20)
    assert follows.shape == (4, 2)
    turned, _ = model(x | {"chosen": x["chosen"][:, ::-1]})
    np.testing.assert_allclose(turned, masked[:, ::-1], rtol=1e-5)


def compiled(model: keras.Model) -> keras.Model:
    optimizer = keras.optimizers.Adam(3e-3)
    optimizer.build(model.trainable_variables)  # else the first step is traced twice
    model.compile(
        optimizer=optimizer,
        loss=make_loss(None, PRETRAINING),
        metrics=[[metric] for metric in make_metrics(None, PRETRAINING)],
        jit_compile=False,
    )
    return model


def test_loss_is_the_sum_of_both_means_over_what_has_a_label() -> None:
    model, x = compiled(small()), samples()
    labels = np.array([[5, NO_LABEL], [6, 7], [8, 9], [10, NO_LABEL]], np.int32)
    follows = np.array([0, 1, 1, 0], np.int32)
    logs = model.evaluate(x, (labels, follows), verbose=0, return_dict=True)
    masked_logits, next_logits = (tf.nn.log_softmax(each).numpy() for each in model(x))
    there = labels != NO_LABEL
    masked = -np.mean(masked_logits[(*there.nonzero(), labels[there])])
    following = -np.mean(next_logits[range(4), follows])
    np.testing.assert_allclose(logs["masked_loss"], masked, rtol=1e-5)
    np.testing.assert_allclose(logs["next_loss"], following, rtol=1e-5)
    np.testing.assert_allclose(logs["loss"], masked + following, rtol=1e-5)
    right = masked_logits.argmax(-1) == labels
    np.testing.assert_allclose(logs["masked_accuracy"], right[there].mean(), rtol=1e-6)
    assert "next_accuracy" in logs


def test_it_learns() -> None:
    """The first segment's token again in the second one's place."""
    model, x = compiled(small()), samples(256)
    labels = np.stack([x["token_ids"][:, 1], x["token_ids"][:, 4]], axis=1)
    follows = (x["token_ids"][:, 2] > 12).astype(np.int32)
    worst: list[float] = []
    while not worst or worst[-1] <= 0.9:
        assert len(worst) < 30, worst
        logs = model.fit(x, (labels, follows), batch_size=32, verbose=0).history
        worst.append(min(logs["masked_accuracy"][0], logs["next_accuracy"][0]))


def test_it_has_its_own_loss_and_metrics() -> None:
    named = NamedArguments("mean_squared_error", {})
    for make, given in ((make_loss, named), (make_metrics, (named,))):
        with pytest.raises(UserError, match=r"is given, but data masked_text has .*leave it out"):
            make(given, PRETRAINING)


def test_other_models_refuse_its_data() -> None:
    for name in ("gpt", "mlp", "lstm"):
        with pytest.raises(
            UserError, match=f"model {name} takes one input, but the data gives a dict"
        ):
            build(MODELS[name].config(), description())


def test_accuracy_leaves_out_what_has_no_label() -> None:
    metric = LabeledAccuracy()
    logits = np.float32([[[0, 1], [1, 0], [1, 0]]])
    metric.update_state(np.array([[1, NO_LABEL, 1]]), logits)
    assert float(metric.result()) == 0.5
    metric.update_state(np.array([[NO_LABEL, 0, 1]]), logits, np.float32([[1, 3, 0]]))
    assert float(metric.result()) == pytest.approx((1 + 3) / (2 + 3))
    copy = LabeledAccuracy.from_config(metric.get_config())
    assert copy.name == metric.name
