"""Whether a child computes what its parent does: said from the graphs, measured, and told."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import ooodist
from ooodist.errors import UserError
from ooodist.transfer import answers as questioning
from ooodist.transfer.answers import KEPT, SAME, Answer, Answers, Question, ask
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.zoo.entry import Meta, read, write
from ooodist.zoo.reading.members import GRAPH_MEMBER
from tests.transfer.models import (
    WIDER,
    bert,
    chain,
    convolution,
    gpt,
    head,
    images,
    lstm,
    matched,
    outputs_of,
    parent_of,
    randomize,
    resnet,
    tokens,
    vectors,
    warm,
    wider,
)
from tests.transfer.models import difference as outputs_differ
from tests.zoo.starts import compiled, meta, network, trained, warnings_of, zoo_of

Build = Callable[[], keras.Model]


def dense(*widths: int, activation: str = "relu", **settings: Any) -> Build:
    def build() -> keras.Model:
        parts = [layers.Dense(width, activation, **settings) for width in widths]
        return chain(*parts, layers.Dense(3), shape=(6,))

    return build


def inception(blocks: int) -> keras.Model:
    """Each block has branches that are narrower than what they read, and one that pools."""
    inputs = keras.Input((8, 8, 3))
    x = convolution(inputs, 8)
    for _ in range(blocks):
        pooled = layers.AveragePooling2D(3, 1, padding="same")(x)
        parts = [convolution(x, 4, 1), convolution(convolution(x, 4, 1), 6)]
        x = layers.Concatenate()([*parts, convolution(pooled, 4, 1)])
    return keras.Model(inputs, head(x))


class Scale(layers.Layer):
    """Nothing is known of it."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=shape[-1:], initializer="random_normal")

    def call(self, x: Any) -> Any:
        return x * self.scale


def scaled(width: int) -> Build:
    return lambda: chain(layers.Dense(width), Scale(name="own"), layers.Dense(3), shape=(6,))


LOST: dict[str, tuple[Build, Build, Any, str]] = {
    "a new tanh": (
        dense(8, activation="sigmoid"),
        dense(8, 8, activation="sigmoid"),
        vectors(),
        "sigmoid, which the parent does not have",
    ),
    "blocks with bottlenecks": (
        lambda: inception(2),
        lambda: inception(3),
        images(pixels=8),
        "which the parent does not have",
    ),
    "narrower": (dense(8), dense(5), vectors(), "has no place for 3 of 8 units"),
    "shallower": (dense(8, 8), dense(8), vectors(), "and its partner dense"),
    "other classes": (
        lambda: chain(layers.Dense(8, "relu"), layers.Dense(3), shape=(6,)),
        lambda: chain(layers.Dense(8, "relu"), layers.Dense(4), shape=(6,)),
        vectors(),
        "does not fit that of the parent",
    ),
    "an unknown layer": (
        scaled(8),
        scaled(12),
        vectors(),
        "that the parent does not have, as nothing is known of layer own (Scale)",
    ),
    "a deeper LSTM": (
        lambda: lstm(layers=1),
        lambda: lstm(layers=2),
        tokens(),
        "reads lstm_1, which the parent does not have",
    ),
    "norms behind sums": (bert, lambda: bert(layers=2), tokens(), "reads block_1_mlp_norm"),
    "skipped blocks": (
        lambda: resnet(blocks_per_stage=2),
        resnet,
        images(),
        "reads what the parent's stage_0_block_0_relu makes",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_where_the_function_is_lost_the_graphs_say_why(name: str) -> None:
    build, build_other, data, said = LOST[name]
    parent, child = randomize(build()), build_other()
    made = warm(child, parent)
    answers = ask(parent, graph_of(parent))
    assert answers is not None
    found = questioning.difference(child, answers)
    if outputs_of(child, data)[0].shape == outputs_of(parent, data)[0].shape:
        assert outputs_differ(child, parent, data) > 1e-3
        assert found is not None
        assert found > 1e-3
    else:
        assert found is None
    assert any(said in each for each in made.departures), made.departures


@pytest.mark.parametrize("name", ["resnet", "dense net", "lstm", "vit"])
def test_where_the_function_is_kept_nothing_is_said(name: str) -> None:
    """Both by the graphs and by the answers; and narrower is never said to be the same."""
    build, _, data = WIDER[name]
    parent, child = parent_of(name), wider(name)
    assert warm(child, parent).departures == ()
    answers = ask(parent, graph_of(parent))
    assert answers is not None
    found = questioning.difference(child, answers)
    assert found is not None
    assert found < SAME / 10
    narrower = build()
    assert outputs_differ(narrower, child, data) > SAME
    assert warm(narrower, child).departures


def test_a_setting_that_only_shows_in_the_answers() -> None:
    """Graphs do not have it."""

    def build(size: int) -> keras.Model:
        return chain(
            layers.Conv2D(4, 3, activation="relu"),
            layers.AveragePooling2D(size, 1, padding="same"),
            layers.Conv2D(3, 1),
            shape=(8, 8, 3),
        )

    parent, child = randomize(build(2)), build(3)
    assert warm(child, parent, matched).departures == ()
    answers = ask(parent, graph_of(parent))
    assert answers is not None
    assert (questioning.difference(child, answers) or 0) > SAME


# What is told


def test_a_start_that_keeps_the_function_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zoo = zoo_of(tmp_path, trained(network(), 5))
    with caplog.at_level(logging.INFO, logger="ooodist"):
        found = ooodist.warm_start(compiled(network(9, 2, seed=5)), zoo)
    assert found is not None
    assert found.exact
    assert found.departures == ()
    assert found.difference is not None
    assert found.difference < 1e-5
    assert "the function is the parent's, off by " in caplog.text
    assert "identity" in caplog.text
    assert warnings_of(caplog) == []


def test_a_start_that_loses_the_function_says_so_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zoo = zoo_of(tmp_path, randomize(dense(8, activation="sigmoid")()))
    model = dense(8, 8, activation="sigmoid")()
    with caplog.at_level(logging.INFO, logger="ooodist"):
        found = ooodist.warm_start(model, zoo, task="any", dataset="any")
    assert found is not None
    assert not found.exact
    assert found.difference is not None
    assert found.difference > 0.01
    [line] = [r.getMessage() for r in caplog.records if "starts from" in r.getMessage()]
    assert f"not exact, its answers to random inputs are off by {found.difference:.2g}" in line
    assert "identity" not in line
    [warning] = warnings_of(caplog)
    assert "does not compute what its parent does: " in warning
    assert found.departures[0] in warning


# Answers


def test_answers_are_the_same_ones_whenever_they_are_asked_for() -> None:
    parent = randomize(gpt())
    first, again = (ask(parent, graph_of(parent)) for _ in range(2))
    assert first == again
    assert first is not None
    assert first.questions == (Question((4, 7), 24),)
    assert [len(each.numbers) for each in first.outputs] == [KEPT]
    assert questioning.difference(parent, first) < 1e-6  # type: ignore[operator]
    assert questioning.difference(randomize(gpt(), 1), first) > 0.1  # type: ignore[operator]


def test_inputs_of_several_kinds() -> None:
    numbers = keras.Input((3,), name="numbers")
    words = keras.Input((None,), dtype="int32", name="words")
    read = layers.GlobalAveragePooling1D()(layers.Embedding(9, 4)(words))
    out = layers.Dense(2)(layers.Concatenate()([numbers, read]))
    model = keras.Model({"numbers": numbers, "words": words}, {"a": out, "b": layers.ReLU()(out)})
    answers = ask(model, graph_of(model))
    assert answers is not None
    assert {question.below for question in answers.questions} == {0, 9}
    assert len(answers.outputs) == 2
    assert questioning.difference(model, answers) < 1e-6  # type: ignore[operator]


def test_what_cannot_be_asked_is_not() -> None:
    def stubborn(x: Any) -> Any:
        raise ValueError("no")

    class Stubborn(keras.Model):
        def call(self, x: Any) -> Any:
            return stubborn(x)

    model = Stubborn()
    model.built = True
    assert ask(model, graph_of(model)) is None
    model = chain(layers.Dense(2), shape=(6,))
    model.layers[-1].bias.assign([np.nan, 0])
    assert ask(model, graph_of(model)) is None
    other = chain(layers.Dense(2), shape=(7,))
    answers = ask(other, graph_of(other))
    assert answers is not None
    assert questioning.difference(chain(layers.Dense(2), shape=(6,)), answers) is None


GOOD = {"questions": [{"shape": [4, 6]}], "outputs": [{"shape": [4, 1], "numbers": [1, 2, 3, 4]}]}


@pytest.mark.parametrize(
    "changes",
    [
        {"questions": [{"shape": [10**9, 10**9]}]},
        {"questions": [{"shape": [4, -6]}]},
        {"questions": [{"shape": [4], "below": -1}]},
        {"questions": [{"shape": [4], "below": 2**40}]},
        {"outputs": [{"shape": [4, 2], "numbers": [1, 2, 3, 4]}]},
        {"outputs": [{"shape": [4], "numbers": [1, 2, 3, float("nan")]}]},
        {"outputs": 3},
        {"sum": 1},
    ],
)
def test_answers_in_a_file_are_checked(changes: dict[str, Any], tmp_path: Path) -> None:
    model, file = chain(layers.Dense(1), shape=(6,)), tmp_path / "a.keras"
    write(file, model, Meta(), graph_of(model))
    found = read(file).answers
    assert found == ask(model, graph_of(model))
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for given, is_good in ((GOOD, True), (GOOD | changes, False)):
        content = json.loads(members[GRAPH_MEMBER]) | {"answers": given}
        with zipfile.ZipFile(file, "w") as archive:
            for name, value in members.items():
                text = json.dumps(content).encode() if name == GRAPH_MEMBER else value
                archive.writestr(name, text)
        if is_good:
            assert read(file).answers == Answers(
                (Question((4, 6)),), (Answer((4, 1), (1.0, 2.0, 3.0, 4.0)),)
            )
        else:
            with pytest.raises(UserError, match=r"answers|questions"):
                read(file)


def test_a_zoo_without_answers_says_that_nothing_was_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(questioning, "ask", lambda *_: None)
        zoo = zoo_of(tmp_path, network(), metas=[meta()])
    with caplog.at_level(logging.INFO, logger="ooodist"):
        found = ooodist.warm_start(network(9), zoo)
    assert found is not None
    assert found.exact
    assert found.difference is None
    assert "not measured" in caplog.text
