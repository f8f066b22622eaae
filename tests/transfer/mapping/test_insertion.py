"""New operators change nothing at first, and learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from ooodist.models.mlp import MlpConfig
from ooodist.models.resnet20 import ResNet20Config
from ooodist.models.transformers.bert import Bert12Config
from ooodist.models.transformers.gpt import GptConfig
from ooodist.models.transformers.vit import VitConfig
from ooodist.transfer.graph.graph import Graph
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.mapping.transform import Transformed
from tests.transfer.models import (
    CLASSES,
    SAME,
    Family,
    Pairs,
    bottlenecks,
    chain,
    check_report,
    dense_net,
    difference,
    gpt,
    head,
    images,
    inverted_bottlenecks,
    of_image_data,
    of_token_data,
    outputs_of,
    randomize,
    resnet,
    sequences,
    squeezed,
    step,
    tokens,
    values_of,
    vectors,
    vit,
    warm,
    weights_of,
)


def by_name(child: Graph, parent: Graph) -> Pairs:
    """Operators of the same name are the same ones."""
    numbers = {node.name: number for number, node in enumerate(parent.nodes)}
    return [(n, numbers[node.name]) for n, node in enumerate(child.nodes) if node.name in numbers]


def actions_of(made: Transformed, layer: str) -> set[str]:
    return {each.action for each in made.report if each.name.split("/")[0] == layer}


# In a row


def row(*new: Any, last: str = "relu", width: int = 6) -> keras.Model:
    """Image to classes, with new layers behind the first activation."""
    return chain(
        layers.Conv2D(width, 3, padding="same", activation=last, name="first"),
        *new,
        layers.Conv2D(4, 3, padding="same", name="second"),
        layers.GlobalAveragePooling2D(name="pool"),
        layers.Dense(CLASSES, name="head"),
        shape=(8, 8, 3),
    )


NEW: dict[str, Callable[[], list[Any]]] = {
    "1x1": lambda: [layers.Conv2D(6, 1, activation="relu", name="new")],
    "3x3": lambda: [layers.Conv2D(6, 3, padding="same", activation="relu", name="new")],
    "4x2": lambda: [layers.Conv2D(6, (4, 2), padding="same", name="new")],
    "dilated": lambda: [layers.Conv2D(6, 3, padding="same", dilation_rate=2, name="new")],
    "Dense": lambda: [layers.Dense(6, activation="relu", name="new")],
    "wider": lambda: [layers.Conv2D(9, 3, padding="same", name="new"), layers.ReLU(name="relu")],
    "depthwise": lambda: [layers.DepthwiseConv2D(3, padding="same", name="new")],
    "depthwise times two": lambda: [
        layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="new")
    ],
    "batch norm": lambda: [layers.BatchNormalization(name="new")],
    "batch norm without scale": lambda: [layers.BatchNormalization(scale=False, name="new")],
    "all": lambda: [
        layers.Conv2D(8, 3, padding="same", use_bias=False, name="new"),
        layers.BatchNormalization(name="norm"),
        layers.ReLU(name="relu"),
        layers.Dropout(0.5),
        layers.DepthwiseConv2D(3, padding="same", name="depthwise"),
        layers.BatchNormalization(name="norm_2"),
        layers.ReLU(name="relu_2"),
        layers.Conv2D(7, 1, name="new_2"),
    ],
}


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("width", [6, 8])
def test_new_layers_behind_a_relu_change_nothing(name: str, width: int) -> None:
    """Also where all is wider than it was."""
    parent, child = randomize(row()), row(*NEW[name](), width=width)
    made = warm(child, parent, by_name)
    assert actions_of(made, "new") == {"identity"}
    assert made.departures == ()
    assert difference(child, parent, images(pixels=8)) < SAME


def test_a_new_causal_convolution_hands_on_the_present() -> None:
    def build(*new: Any) -> keras.Model:
        first = layers.Conv1D(4, 3, padding="causal", activation="relu", name="first")
        return chain(first, *new, layers.Conv1D(CLASSES, 1, name="last"), shape=(5, 6))

    parent = randomize(build())
    child = build(layers.Conv1D(4, 3, padding="causal", name="new"))
    assert actions_of(warm(child, parent, by_name), "new") == {"identity"}
    assert difference(child, parent, sequences()) < SAME


def test_a_new_dense_behind_another_activation_is_close_to_linear_only() -> None:
    """By its nature: tanh and gelu change what comes in. Without one it is exact."""
    parent = randomize(row(last="tanh"))
    exact = row(layers.Conv2D(6, 1, name="new"), last="tanh")
    warm(exact, parent, by_name)
    assert difference(exact, parent, images(pixels=8)) < SAME
    bent = row(layers.Conv2D(6, 1, activation="tanh", name="new"), last="tanh")
    made = warm(bent, parent, by_name)
    assert actions_of(made, "new") == {"identity"}
    assert "new/tanh, which the parent does not have" in made.departures[0]
    assert SAME < difference(bent, parent, images(pixels=8)) < 1


@pytest.mark.parametrize(
    "new",
    [
        lambda: layers.Conv2D(6, 3, padding="valid", name="new"),
        lambda: layers.Conv2D(6, 2, strides=2, name="new"),
        lambda: layers.Conv2D(6, 3, padding="same", groups=2, name="new"),
        lambda: layers.SeparableConv2D(6, 3, padding="same", name="new"),
        lambda: layers.Conv2DTranspose(6, 3, padding="same", name="new"),
        lambda: layers.LayerNormalization(name="new"),
        lambda: layers.PReLU(name="new"),
    ],
)
def test_what_cannot_be_the_identity_stays_fresh(new: Callable[[], Any]) -> None:
    parent, child = randomize(row()), row(new())
    own = values_of(child)
    made = warm(child, parent, by_name)
    assert actions_of(made, "new") == {"fresh"}
    for report in made.report:
        if report.action == "fresh":
            np.testing.assert_array_equal(made.values[report.name], own[report.name])


def test_a_narrow_new_layer_hands_on_what_it_can() -> None:
    parent, child = randomize(row()), row(layers.Conv2D(3, 1, name="new"))
    made = warm(child, parent, by_name)
    assert actions_of(made, "new") == {"identity"}
    assert "too narrow to hand on all units" in made.departures[0]
    assert np.isfinite(difference(child, parent, images(pixels=8)))


def test_new_batch_norms_with_a_scale_are_named_for_calibration() -> None:
    parent, child = randomize(row()), row(*NEW["all"]())
    made = warm(child, parent, by_name)
    assert made.inserted_norms == ("norm/gamma", "norm_2/gamma")
    child = row(*NEW["batch norm without scale"]())
    assert warm(child, parent, by_name).inserted_norms == ()


# Residual branches


def residual(branch: Callable[[Any], Any] | None) -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(6, 3, padding="same", activation="relu", name="first")(inputs)
    if branch is not None:
        x = layers.Add(name="add")([x, branch(x)])
    return keras.Model(inputs, head(x))


def two_convolutions(x: Any, end: Callable[[Any], Any] = lambda x: x) -> Any:
    x = layers.Conv2D(5, 3, padding="same", activation="relu", name="start")(x)
    return end(layers.Conv2D(6, 3, padding="same", name="end")(x))


BRANCHES: dict[str, Callable[[Any], Any]] = {
    "convolutions": two_convolutions,
    "batch norm": lambda x: two_convolutions(x, layers.BatchNormalization(name="norm")),
    "layer norm": lambda x: two_convolutions(x, layers.LayerNormalization(name="norm")),
    "group norm": lambda x: two_convolutions(x, layers.GroupNormalization(2, name="norm")),
    "norm without scale": lambda x: two_convolutions(
        x, layers.BatchNormalization(scale=False, name="norm")
    ),
    "gelu": lambda x: two_convolutions(x, layers.Activation("gelu")),
    "relu": lambda x: two_convolutions(x, layers.ReLU()),
    "batch norm, relu": lambda x: layers.ReLU()(BRANCHES["batch norm"](x)),
    "squeeze and excite": lambda x: two_convolutions(x, lambda y: squeezed(y, 6)),
    "separable": lambda x: layers.SeparableConv2D(6, 3, padding="same", name="end")(
        layers.Conv2D(5, 1, name="start")(x)
    ),
    "Dense": lambda x: layers.Dense(6, name="end")(layers.Dense(5, "gelu", name="start")(x)),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_new_branch_adds_nothing_and_learns(name: str) -> None:
    """Its last operator makes zeros, and moves at the first step; all others at the second."""
    parent, child = randomize(residual(None)), residual(BRANCHES[name])
    data = images(pixels=8)
    assert warm(child, parent, by_name).departures == ()
    assert difference(child, parent, data) < SAME
    start = values_of(child)
    step(child, data)
    first = values_of(child)
    step(child, data)
    second = values_of(child)
    ends = [n for n in start if n.split("/")[0] in ("end", "norm") and n.endswith(MOVED)]
    assert any(np.any(first[name] != start[name]) for name in ends), name
    assert np.any(second["start/kernel"] != start["start/kernel"])
    assert all(np.isfinite(value).all() for value in second.values())


MOVED = ("kernel", "gamma")


def test_a_branch_that_ends_in_a_relu_is_small_but_not_zero() -> None:
    """Zeros would be for ever: a ReLU hands on no gradient at zero."""
    parent = randomize(residual(None))
    child = residual(
        lambda x: layers.Conv2D(6, 1, use_bias=False, activation="relu", name="end")(x)
    )
    made = warm(child, parent, by_name)
    assert actions_of(made, "end") == {"identity"}
    assert 0 < np.abs(values_of(child)["end/kernel"]).max() <= 1e-5
    assert 0 < difference(child, parent, images(pixels=8)) < SAME
    step(child, images(pixels=8))
    assert np.abs(values_of(child)["end/kernel"]).max() > 1e-4


def test_if_all_that_is_added_is_new_one_part_carries_on() -> None:
    """A new stage: its shortcut is the identity, its branch adds nothing."""

    def build(new: bool) -> keras.Model:
        inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(6, 3, padding="same", activation="relu", name="first")(inputs)
        if new:
            shortcut = layers.Conv2D(6, 1, name="shortcut")(x)
            x = layers.ReLU(name="relu")(
                layers.Add(name="add")([shortcut, BRANCHES["batch norm"](x)])
            )
        return keras.Model(inputs, head(x))

    parent, child = randomize(build(False)), build(True)
    made = warm(child, parent, by_name)
    assert actions_of(made, "shortcut") == {"identity"}
    assert difference(child, parent, images(pixels=8)) < SAME


def test_new_units_of_a_concatenation_are_not_heard_at_first() -> None:
    def build(new: bool) -> keras.Model:
        inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(6, 3, padding="same", activation="relu", name="first")(inputs)
        y = layers.Conv2D(4, 3, padding="same", name="old")(x)
        parts = [x, layers.Conv2D(5, 3, padding="same", name="new")(x), y] if new else [x, y]
        x = layers.Concatenate(name="concat")(parts)
        x = layers.ReLU(name="relu")(layers.BatchNormalization(name="norm")(x))
        return keras.Model(inputs, head(layers.Conv2D(7, 3, name="last")(x)))

    parent, child = randomize(build(False)), build(True)
    data = images(pixels=8)
    made = warm(child, parent, by_name)
    assert difference(child, parent, data) < SAME
    kernel = made.values["last/kernel"]
    assert not kernel[:, :, 6:11].any()
    assert np.abs(kernel[:, :, 11:]).min() > 0
    step(child, data, steps=2)
    moved = values_of(child)
    assert np.any(moved["last/kernel"][:, :, 6:11])
    assert np.any(moved["new/kernel"] != made.values["new/kernel"])


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_new_branch_that_pools_takes_nothing_from_the_others(at: int) -> None:
    """Its convolution is like that of a branch that was there."""

    def build(new: bool) -> keras.Model:
        inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(6, 3, padding="same", activation="relu")(inputs)
        parts: list[Any] = [x, x]
        if new:
            parts.insert(at, layers.AveragePooling2D(3, 1, padding="same")(x))
        sizes = [1, 3]
        sizes.insert(at, 1) if new else None
        made = [
            layers.Conv2D(4, size, padding="same", activation="relu")(part)
            for part, size in zip(parts, sizes, strict=True)
        ]
        return keras.Model(inputs, head(layers.Concatenate()(made)))

    parent, child = randomize(build(False)), build(True)
    assert warm(child, parent).departures == ()
    assert difference(child, parent, images(pixels=8)) < SAME


# Families, as the zoo would match them

DEEPER: dict[str, tuple[Callable[[], keras.Model], Callable[[], keras.Model], Any]] = {
    "mlp": (
        lambda: of_image_data(MlpConfig(layers=(8, 8))),
        lambda: of_image_data(MlpConfig(layers=(8, 8, 8, 8))),
        images(),
    ),
    "resnet": (
        lambda: of_image_data(ResNet20Config(width=4, blocks_per_stage=1)),
        lambda: of_image_data(ResNet20Config(width=4, blocks_per_stage=3)),
        images(),
    ),
    "bottlenecks": (lambda: bottlenecks(3, (1, 1)), lambda: bottlenecks(3, (3, 2)), images()),
    "dense net": (lambda: dense_net(3, (2, 2)), lambda: dense_net(3, (3, 4)), images()),
    "inverted bottlenecks": (
        lambda: inverted_bottlenecks(4, 1),
        lambda: inverted_bottlenecks(4, 3),
        images(),
    ),
    "vit": (
        lambda: of_image_data(VitConfig(patch=4, layers=1, width=8, heads=2)),
        lambda: of_image_data(VitConfig(patch=4, layers=3, width=8, heads=2)),
        images(),
    ),
    "gpt": (
        lambda: of_token_data(GptConfig(layers=1, width=8, heads=2)),
        lambda: of_token_data(GptConfig(layers=3, width=8, heads=2)),
        tokens(),
    ),
    "gpt, untied": (
        lambda: of_token_data(GptConfig(layers=2, width=8, heads=2, tie_embeddings=False)),
        lambda: of_token_data(GptConfig(layers=3, width=8, heads=2, tie_embeddings=False)),
        tokens(),
    ),
}


@pytest.mark.parametrize("name", DEEPER)
def test_deeper_models_compute_the_same(name: str) -> None:
    build, build_deeper, data = DEEPER[name]
    parent, child = randomize(build()), build_deeper()
    made = warm(child, parent)
    assert made.departures == ()
    assert difference(child, parent, data) < SAME
    taken = {each.source for each in made.report if each.source}
    assert taken == set(values_of(parent))  # all of the parent is there
    before = outputs_of(child, data)[0]
    step(child, data, rate=0.01)
    after = outputs_of(child, data)[0]
    assert np.isfinite(after).all()
    assert np.abs(after - before).max() > 0


def test_a_deeper_bert_is_not_the_same() -> None:
    """By its nature: its norms stand behind the sums, and norm what was normed."""
    sizes: dict[str, Any] = {"width": 8, "heads": 2}
    parent = randomize(of_token_data(Bert12Config(layers=1, **sizes)))
    child = of_token_data(Bert12Config(layers=2, **sizes))
    made = warm(child, parent)
    assert {each.source for each in made.report if each.source} == set(values_of(parent))
    assert SAME < difference(child, parent, tokens()) < 1


def test_without_any_partner_nothing_is_the_identity() -> None:
    parent, child = randomize(residual(None)), residual(BRANCHES["batch norm"])
    made = warm(child, parent, [])
    assert {each.action for each in made.report} == {"fresh"}


def test_steps_of_a_deeper_model_train_it() -> None:
    """From where its parent was, with all its new layers."""
    parent = randomize(chain(layers.Dense(8, "relu"), layers.Dense(3), shape=(6,)))
    child = chain(layers.Dense(8, "relu"), layers.Dense(8, "relu"), layers.Dense(3), shape=(6,))
    made = warm(child, parent)
    assert len(made.names("identity")) == 2
    step(child, vectors(), steps=5)
    for name in made.names("identity"):
        assert np.any(values_of(child)[name] != made.values[name])


WIDER_AND_DEEPER: dict[str, Family] = {
    "mlp": (
        lambda: of_image_data(MlpConfig(layers=(8, 8))),
        lambda: of_image_data(MlpConfig(layers=(10, 9, 11))),
        images(),
    ),
    "vit": (vit, lambda: vit(width=16, layers=3), images()),
    "gpt": (gpt, lambda: gpt(width=16, heads=4, layers=2), tokens()),
    "dense net": (lambda: dense_net(3), lambda: dense_net(4, (3, 3)), images()),
    "inverted bottlenecks": (
        lambda: inverted_bottlenecks(4, 1),
        lambda: inverted_bottlenecks(6, 2),
        images(),
    ),
}


@pytest.mark.parametrize("name", WIDER_AND_DEEPER)
def test_wider_and_deeper_models_compute_the_same(name: str) -> None:
    build, build_larger, data = WIDER_AND_DEEPER[name]
    parent, child = randomize(build()), build_larger()
    made = warm(child, parent)
    check_report(made, child)
    assert made.departures == ()
    assert difference(child, parent, data) < SAME


# Skipped


def test_layers_of_the_parent_without_partner_are_left_out() -> None:
    parent = randomize(resnet(blocks_per_stage=3))
    child = resnet()
    made = warm(child, parent)
    check_report(made, child)
    assert {each.action for each in made.report} == {"copied"}
    sources = values_of(parent)
    for each in made.report:
        np.testing.assert_array_equal(made.values[each.name], sources[each.source])


def test_skipped_layers_that_did_nothing_are_not_missed() -> None:
    """A parent whose second half is the identity, and a child of one half."""
    parent, child = gpt(layers=2), gpt()
    randomize(parent)
    for name, variable in weights_of(parent).items():
        if "block_1" in name and ("attention_output" in name or "contract" in name):
            variable.assign(np.zeros(variable.shape))
    pairs = [
        (n, m)
        for n, mine in enumerate(graph_of(child).nodes)
        for m, its in enumerate(graph_of(parent).nodes)
        if mine.name == its.name
    ]
    made = warm(child, parent, pairs)
    assert made.carried == 1
    assert difference(child, parent, tokens()) < SAME
