"""Files of the zoo: what is written is read, bit by bit."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from ooodist.errors import UserError
from ooodist.transfer.graph.graph import Axis, Graph, Node, Weight
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.graph.operators import outline_of
from ooodist.util import yaml_dataclass
from ooodist.zoo.entry import (
    Meta,
    check,
    check_meta,
    read,
    read_for_index,
    read_with_weights,
    write,
)
from ooodist.zoo.zoo import Zoo
from tests.zoo.entries import META, chain, write_plain


def mixed_model(dtype: str = "float32") -> keras.Model:
    """Convolutions, batch norm, a nested model that is used twice, dropout; trained a step."""
    inner = keras.Sequential(
        [layers.Dense(5, name="dense_a"), layers.Dense(5, name="dense_b")], name="inner"
    )
    inputs = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(5, 3, name="conv", dtype=dtype)(inputs)
    x = layers.BatchNormalization(name="norm")(x)
    x = inner(inner(x))
    x = layers.Dropout(0.1, name="dropout")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    model = keras.Model(inputs, layers.Dense(2, name="head", dtype=dtype)(x), name="mixed")
    model.compile("adam", "mse", run_eagerly=True)
    model.fit(np.ones((4, 8, 8, 3)), np.ones((4, 2)), verbose=0)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, keras.Model]:
    model = mixed_model()
    file = tmp_path_factory.mktemp("saved") / "model.keras"
    write(file, model, META, graph_of(model))
    return file, model


# What is written is read


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "mixed_bfloat16"])
def test_weights_are_read_back_bit_by_bit(dtype: str, tmp_path: Path) -> None:
    model = mixed_model(dtype)
    file = tmp_path / "model.keras"
    graph = graph_of(model)
    write(file, model, META, graph)
    found = read(file)
    assert found.meta == META
    assert yaml_dataclass.plain(found.graph) == yaml_dataclass.plain(graph)
    _, weights = read_with_weights(file)
    assert set(weights) == {weight.path for weight in model.weights}
    for weight in model.weights:
        expected = weight.numpy()
        assert weights[weight.path].dtype == expected.dtype
        assert weights[weight.path].tobytes() == expected.tobytes()
    assert check(file).meta == found.meta


def test_weights_with_equal_values_are_read_too(tmp_path: Path) -> None:
    model = keras.Sequential(
        [keras.Input((4,)), *(layers.Dense(4, "relu", name=f"dense{k}") for k in range(5))]
    )
    model.set_weights([np.ones(weight.shape) for weight in model.weights])
    write(tmp_path / "a.keras", model, Meta(), graph_of(model))
    _, weights = read_with_weights(tmp_path / "a.keras")
    assert len(weights) == 10
    assert all((value == 1).all() for value in weights.values())


def test_an_index_gets_what_the_whole_file_has(saved: tuple[Path, keras.Model]) -> None:
    file, model = saved
    assert read_for_index(file) == (META, outline_of(graph_of(model)))
    assert check(file).outline == outline_of(graph_of(model))


def test_keras_opens_the_file_without_ooodist(saved: tuple[Path, keras.Model]) -> None:
    file, model = saved
    images = np.random.default_rng(0).normal(size=(3, 8, 8, 3))
    loaded = keras.models.load_model(file, compile=False)
    np.testing.assert_array_equal(loaded(images, training=False), model(images, training=False))


def test_the_optimizer_is_left_out_of_the_file_and_stays_with_the_model(
    saved: tuple[Path, keras.Model], tmp_path: Path
) -> None:
    file, model = saved
    model.save(tmp_path / "whole.keras")
    parameters = 4 * model.count_params()
    assert file.stat().st_size < (tmp_path / "whole.keras").stat().st_size - parameters
    assert len(model.optimizer.variables) > 2
    model.fit(np.ones((4, 8, 8, 3)), np.ones((4, 2)), verbose=0)


def test_reading_needs_no_tensorflow(saved: tuple[Path, keras.Model]) -> None:
    program = (
        "import sys; from pathlib import Path; from ooodist.zoo import entry; "
        "file = Path(sys.argv[1]); print(len(entry.read_with_weights(file)[1])); "
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, saved[0]], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "12\n", done.stderr


def test_others_may_read_the_file_as_the_umask_says(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), layers.Dense(2, name="only")])
    write(tmp_path / "a.keras", model, Meta(), graph_of(model))
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a.keras").stat().st_mode) == 0o666 & ~mask
    assert os.listdir(tmp_path) == ["a.keras"]


def test_a_graph_of_another_model_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), layers.Dense(2, name="only")])
    with pytest.raises(UserError, match="has no weight layer1/kernel"):
        write(tmp_path / "a.keras", model, Meta(), chain([2, 2]))
    assert os.listdir(tmp_path) == []
    with pytest.raises(UserError, match="cannot be written"):
        write(tmp_path / "none" / "a.keras", model, Meta(), graph_of(model))


class Doubling(layers.Dense):
    """Saves other values than it has."""

    def save_own_variables(self, store: dict[str, np.ndarray]) -> None:
        for number, variable in enumerate((self._kernel, self.bias)):
            store[str(number)] = 2 * variable.numpy() + 1


def test_a_layer_that_saves_its_weights_in_its_own_way_is_named(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), Doubling(2, name="doubling")])
    with pytest.raises(UserError, match=r"does not save its weight .*doubling/"):
        write(tmp_path / "a.keras", model, Meta(), graph_of(model))


def test_a_file_that_is_open_is_read_as_well(saved: tuple[Path, keras.Model]) -> None:
    with saved[0].open("rb") as file:
        found = read(file)
        assert found == read(saved[0])
        assert read_with_weights(file)[1].keys() == read_with_weights(saved[0])[1].keys()


@pytest.mark.parametrize("size", [(), (0,), (3,), (2, 3, 1, 2)])
def test_weights_of_any_rank(size: tuple[int, ...], tmp_path: Path) -> None:
    weight = Weight("w", "w", tuple(Axis(each) for each in size))
    write_plain(tmp_path / "a.keras", Graph((Node("n", "N", (), (weight,)),), ()))
    found, weights = read_with_weights(tmp_path / "a.keras")
    assert found.meta == check(tmp_path / "a.keras").meta
    assert weights["w"].shape == size


# Meta data


WRONG_META = [
    (Meta(metrics={"accuracy": 1.5}), "accuracy is 1.5; it must be 0 to 1"),
    (Meta(metrics={"accuracy": float("nan")}), "accuracy is nan"),
    (Meta(metrics={"accuracy": -0.01}), "accuracy is -0.01"),
    (Meta(metrics={"perplexity": 0.5}), "perplexity is 0.5; it must be at least 1"),
    (Meta(metrics={"x" * 1001: 0.5}), "metrics is 'xxx.* of 1001 characters"),
    (Meta(metrics={f"m{n}": 0.5 for n in range(101)}), "metrics has 101 texts"),
    (Meta(metrics={"a\nb": 0.5}), "metrics is"),
    (Meta(judged_by="f1"), "judged_by is 'f1'; .*it has none"),
    (
        Meta(metrics={"hinge": 1.0, "loss": 2.0}, judged_by="hinge"),
        "judged_by is 'hinge'.*\\(loss\\)",
    ),
    (Meta(name="x" * 1001), "name is 'xxx.* of 1001 characters"),
    (Meta(task="a\nb"), "task is"),
    (Meta(dataset="\x1b[31m"), "dataset is"),
    (Meta(name="\ud800"), "name is"),
    (Meta(parent="a\0"), "parent is"),
    (Meta(tags=("t",) * 101), "tags has 101 texts"),
    (Meta(access=("", "b\t")), "access is"),
]


@pytest.mark.parametrize(("meta", "message"), WRONG_META)
def test_meta_data_that_are_none_are_refused(meta: Meta, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        check_meta(meta)
    write_plain(tmp_path / "a.keras", chain([2, 3]), meta)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.keras")


@pytest.mark.parametrize(
    ("key", "value"), [("metrics", {"accuracy": "0.9"}), ("tags", "a"), ("name", 3), ("more", 1)]
)
def test_meta_data_of_other_types_are_refused(key: str, value: object, tmp_path: Path) -> None:
    def content(said: dict[str, Any]) -> None:
        said["meta"][key] = value

    write_plain(tmp_path / "a.keras", chain([2, 3]), content=content)
    with pytest.raises(UserError, match=key):
        read(tmp_path / "a.keras")


@pytest.mark.parametrize("accuracy", [None, 0.25])
def test_a_file_of_an_earlier_version_has_an_accuracy(
    accuracy: float | None, tmp_path: Path
) -> None:
    def content(said: dict[str, Any]) -> None:
        said["version"] = 1
        del said["meta"]["metrics"], said["meta"]["judged_by"]
        said["meta"]["accuracy"] = accuracy

    write_plain(tmp_path / "a.keras", chain([2, 3]), content=content)
    metrics = {} if accuracy is None else {"accuracy": accuracy}
    assert read(tmp_path / "a.keras").meta == replace(META, metrics=metrics)
    assert check(tmp_path / "a.keras").meta == replace(META, metrics=metrics)
    with Zoo(tmp_path) as zoo:
        assert zoo.list()[0].meta.metrics == metrics


def test_a_file_of_an_earlier_version_has_no_outline(tmp_path: Path) -> None:
    def content(said: dict[str, Any]) -> None:
        said["version"] = 2
        del said["outline"]

    file, graph = tmp_path / "a.keras", chain([2, 3])
    write_plain(file, graph, content=content)
    assert read(file).graph == graph
    assert read_for_index(file) == (META, outline_of(graph))
    assert check(file).outline == outline_of(graph)


def test_a_wrong_accuracy_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    def content(said: dict[str, Any]) -> None:
        said["version"] = 1
        del said["meta"]["metrics"], said["meta"]["judged_by"]
        said["meta"]["accuracy"] = 75

    write_plain(tmp_path / "a.keras", chain([2, 3]), content=content)
    with pytest.raises(UserError, match="accuracy is 75"):
        read(tmp_path / "a.keras")
