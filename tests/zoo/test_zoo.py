"""The zoo: what is added is found again, the best first, as far as there is room."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from ooodist.errors import UserError
from ooodist.transfer.graph.graph import Axis, Graph, Node, Segment, Space, Weight
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.graph.operators import outline_of
from ooodist.zoo.entry import Checked, Meta, check, digest, read_with_weights
from ooodist.zoo.zoo import Wanted, Zoo, may_use
from tests.zoo.entries import Adder, chain, ids, models_in, outline, write_plain

# Adding


def test_what_is_added_is_there(zoo: Zoo, add: Adder, tmp_path: Path) -> None:
    file = add.file([4, 8, 3], Meta("Residual Net 20!", "t", "d", metrics={"accuracy": 0.9}))
    model = zoo.add(file)
    assert model.startswith("residual-net-20-")
    assert models_in(tmp_path / "zoo") == {f"{model}.keras"}
    (row,) = zoo.list()
    assert (row.id, row.meta.metrics, row.bytes) == (model, {"accuracy": 0.9}, file.stat().st_size)
    assert row.parameters == 4 * 8 + 8 + 8 * 3 + 3
    assert abs(row.created - time.time()) < 60
    entry = zoo.entry(model)
    assert Checked(entry.meta, outline_of(entry.graph), digest(file)) == check(file)
    assert zoo.size(model) == file.stat().st_size
    with zoo.open(model) as opened:
        assert opened.read() == file.read_bytes()
    found, weights = zoo.fetch(model)
    expected, expected_weights = read_with_weights(file)
    assert found == expected
    assert weights.keys() == zoo.fetch(model)[1].keys() == expected_weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(values, expected_weights[name])
    assert zoo.list()[0].uses == 3  # opened, fetched, and its weights read


def test_the_same_again_is_no_error_and_has_the_same_id(zoo: Zoo, add: Adder) -> None:
    file = add.file([4, 8], Meta("a"))
    model = zoo.add(file)
    zoo.fetch(model)
    assert zoo.add(file) == model
    assert [row.uses for row in zoo.list()] == [1]
    other = add.file([4, 8], Meta("a", metrics={"accuracy": 0.5}))
    assert zoo.add(other) != model


def test_a_keras_model_that_is_saved_twice_has_the_same_id(zoo: Zoo) -> None:
    """Though Keras writes into the file when it was saved."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="only")], name="named")
    first = zoo.add_model(model, Meta("Named", "t"))
    time.sleep(1.1)
    assert zoo.add_model(model, Meta("Named", "t"), graph_of(model)) == first
    weights = zoo.fetch(first)[1]
    np.testing.assert_array_equal(weights[model.weights[0].path], model.get_weights()[0])
    model.layers[0].set_weights([np.ones((4, 3)), np.ones(3)])
    assert zoo.add_model(model, Meta("Named", "t")) != first
    found = zoo.query(outline_of(graph_of(model)), Wanted())
    assert found[0].score == 1


def test_a_twin_of_a_model_has_the_same_id(zoo: Zoo) -> None:
    """Though Keras numbers objects that layers share by where they are in memory."""

    def twin(shared: keras.initializers.Initializer) -> keras.Model:
        inputs = keras.Input((4,), name="in")
        x = layers.Dense(4, kernel_initializer=shared, name="one")(inputs)
        x = layers.Dense(4, kernel_initializer=shared, name="other")(x)
        return keras.Model(inputs, x, name="twin")

    initializers = [keras.initializers.HeNormal(), keras.initializers.HeNormal()]
    one, other = map(twin, initializers)
    other.set_weights(one.get_weights())
    assert zoo.add_model(one, Meta("twin")) == zoo.add_model(other, Meta("twin"))


def test_another_config_is_another_model(zoo: Zoo, tmp_path: Path) -> None:
    """Or who plants a Lambda in a copy has the honest model's id, and comes first."""
    layer = {"class_name": "Dense", "config": {"units": 8}, "shared_object_id": 1}
    configs = [
        {"layers": [layer, layer | {"shared_object_id": 2}]},
        {"layers": [layer, layer]},
        {"layers": [layer, layer | {"class_name": "Lambda", "shared_object_id": 2}]},
        {"layers": [layer | {"shared_object_id": 70}, layer | {"shared_object_id": 3}]},
    ]
    added = []
    for number, config in enumerate(configs):
        file, members = tmp_path / f"{number}.keras", {"config.json": json.dumps(config).encode()}
        write_plain(file, chain([4, 8]), members=members)
        added.append(zoo.add(file))
    assert len(set(added)) == 3
    assert added[0] == added[3]


def test_names_of_any_kind_make_names_of_files(zoo: Zoo, add: Adder, tmp_path: Path) -> None:
    names = ["../../etc/passwd", "", "...", "CON", "äöü", "a" * 500, "x/y\\z", "-rf", "a b"]
    added = [add(zoo, [2, number + 1], name=name) for number, name in enumerate(names)]
    assert len(set(added)) == len(names)
    assert {row.id for row in zoo.list()} == set(added)
    assert models_in(tmp_path / "zoo") == {f"{model}.keras" for model in added}
    assert all(len(model) < 60 and model.isascii() and model[0].isalnum() for model in added)


def test_a_model_takes_the_place_of_another(zoo: Zoo, add: Adder, tmp_path: Path) -> None:
    old = add(zoo, [4, 8], name="old")
    new = zoo.add(add.file([4, 9], Meta("new")), replace=old)
    assert models_in(tmp_path / "zoo") == {f"{new}.keras"}
    assert [row.id for row in zoo.list()] == [new]


def test_a_damaged_file_is_not_added(zoo: Zoo, add: Adder, tmp_path: Path) -> None:
    file = add.file([4, 8], Meta())
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="model file"):
        zoo.add(file)
    with pytest.raises(UserError, match="there is no model file"):
        zoo.add(tmp_path / "none.keras")
    assert models_in(tmp_path / "zoo") == set()
    assert zoo.list() == []


def test_an_accuracy_far_below_the_others_is_refused(zoo: Zoo, add: Adder, tmp_path: Path) -> None:
    work = {"task": "t", "dataset": "d"}
    for number in range(5):
        add(zoo, [2, number + 1], metrics={"accuracy": 0.9 + number / 100}, **work)
    with pytest.raises(UserError, match=r"accuracy is 0\.1, far below the 5 models of task t"):
        add(zoo, [2, 9], metrics={"accuracy": 0.1}, **work)
    assert len(models_in(tmp_path / "zoo")) == 5
    add(zoo, [2, 9], metrics={"accuracy": 0.1}, task="t", dataset="other")


def test_what_is_deleted_is_gone(zoo: Zoo, add: Adder, tmp_path: Path) -> None:
    first, second = add(zoo, [4, 8]), add(zoo, [4, 9])
    zoo.evict(first)
    assert models_in(tmp_path / "zoo") == {f"{second}.keras"}
    assert [row.id for row in zoo.list()] == [second]
    for call in (zoo.evict, zoo.entry, zoo.fetch, zoo.open, zoo.size):
        with pytest.raises(UserError, match=f"there is no model '{first}'"):
            call(first)


@pytest.mark.parametrize("model", ["../x", "/etc/passwd", "", "index", "a\0b", "x" * 10_000])
def test_an_id_leads_nowhere_else(model: str, zoo: Zoo, add: Adder, tmp_path: Path) -> None:
    shutil.copy(add.file([2, 3], Meta()), tmp_path / "x.keras")
    for call in (zoo.evict, zoo.entry, zoo.fetch, zoo.open, zoo.size):
        with pytest.raises(UserError, match="there is no model"):
            call(model)
    assert (tmp_path / "x.keras").exists()


# Capacity


def test_the_least_valuable_models_leave_for_a_new_one(add: Adder, tmp_path: Path) -> None:
    files = [add.file([10, 10], Meta(f"m{n}", metrics={"accuracy": 0.1 * n})) for n in range(1, 6)]
    size = max(file.stat().st_size for file in files)
    with Zoo(tmp_path / "zoo", capacity_bytes=3 * size + 100) as zoo:
        first, second, third = map(zoo.add, files[:3])
        zoo.fetch(first)  # a use is worth more than 0.1 of accuracy
        fourth = zoo.add(files[3])
        assert {row.id for row in zoo.list()} == {first, third, fourth}
        assert models_in(tmp_path / "zoo") == {f"{m}.keras" for m in (first, third, fourth)}
        assert second not in {row.id for row in zoo.list()}


def test_what_is_too_large_is_refused_and_nothing_leaves(add: Adder, tmp_path: Path) -> None:
    small = add.file([4, 4], Meta(metrics={"accuracy": 0.9}))
    large = add.file([200, 200], Meta(metrics={"accuracy": 0.9}))
    with Zoo(tmp_path / "zoo", capacity_bytes=small.stat().st_size + 10) as zoo:
        model = zoo.add(small)
        with pytest.raises(UserError, match="does not fit into the zoo of"):
            zoo.add(large)
        assert models_in(tmp_path / "zoo") == {f"{model}.keras"}


def test_what_is_replaced_makes_room(add: Adder, tmp_path: Path) -> None:
    first, second = (
        add.file([9, 9], Meta(f"m{n}", metrics={"accuracy": 1.0 - n})) for n in range(2)
    )
    with Zoo(tmp_path / "zoo", capacity_bytes=first.stat().st_size + 10) as zoo:
        old = zoo.add(first)
        with pytest.raises(UserError, match="does not fit"):
            zoo.add(second)
        new = zoo.add(second, replace=old)
        assert [row.id for row in zoo.list()] == [new]


def test_the_model_with_the_highest_perplexity_leaves(add: Adder, tmp_path: Path) -> None:
    files = [
        add.file([10, 10], Meta(f"m{each}", "language", "d", metrics={"perplexity": each}))
        for each in (20.0, 90.0, 30.0, 40.0)
    ]
    size = max(file.stat().st_size for file in files)
    with Zoo(tmp_path / "zoo", capacity_bytes=3 * size + 100) as zoo:
        best, worst, *others = map(zoo.add, files)
        assert {row.id for row in zoo.list()} == {best, *others}
        assert worst not in models_in(tmp_path / "zoo")


# Queries


def test_the_most_similar_bucket_comes_first_and_the_most_accurate_in_it(
    zoo: Zoo, add: Adder
) -> None:
    same = add(zoo, [4, 8, 8, 2], metrics={"accuracy": 0.2})
    like_1 = add(zoo, [4, 8, 7, 2], metrics={"accuracy": 0.5})
    like_2 = add(zoo, [4, 8, 6, 2], metrics={"accuracy": 0.6})
    unknown = add(zoo, [4, 7, 7, 2])
    far = add(zoo, [4, 3, 2], metrics={"accuracy": 0.99})
    add(zoo, [4, 8, 8, 2], op="Alien", metrics={"accuracy": 0.1})
    child = outline([4, 8, 8, 2])
    found = zoo.query(child, Wanted(), count=9)
    scores = {each.id: each.score for each in found}
    assert scores[same] == 1
    buckets = {model: int(score * 10 + 1e-9) for model, score in scores.items()}
    buckets[same] = 9
    accuracy = {row.id: row.meta.metrics.get("accuracy", -1) for row in zoo.list()}
    order = sorted(scores, key=lambda m: (buckets[m], accuracy[m], scores[m]), reverse=True)
    assert ids(found) == order
    assert {same, like_1, like_2, unknown, far} <= set(order)
    for count in range(1, 6):
        assert zoo.query(child, Wanted(), count=count) == found[:count]
    assert zoo.query(child, Wanted()) == found[:1]


@pytest.mark.parametrize(
    ("task", "name", "values"),
    [
        ("language", "perplexity", [9.0, 20.0, 400.0]),
        ("regression", "rmse", [0.1, 0.5, 30.0]),
        ("pretraining", "loss", [-1.0, 0.5, 2.0]),
        ("classification", "accuracy", [0.9, 0.8, 0.7]),
    ],
)
def test_the_metric_of_the_task_orders_a_bucket_in_its_direction(
    task: str, name: str, values: list[float], zoo: Zoo, add: Adder
) -> None:
    """The best of them; and others of the task that were not measured come last."""
    unknown = add(zoo, [4, 8, 8, 2], task=task)
    added = [
        add(
            zoo,
            [4, 8, 8, 2],
            name=f"{value}",
            task=task,
            metrics={name: value, "mae": 1 / value**2},
        )
        for value in values
    ]
    found = zoo.query(outline([4, 8, 8, 2]), Wanted(task), count=9)
    assert ids(found) == [*added, unknown]
    assert ids(zoo.query(outline([4, 8, 8, 2]), Wanted())) == added[:1]


def test_among_equals_the_newer_comes_first(zoo: Zoo, add: Adder, tmp_path: Path) -> None:
    first, second = (add(zoo, [4, 8], name=name, metrics={"accuracy": 0.5}) for name in "ab")
    assert ids(zoo.query(outline([4, 8]), Wanted(), count=2)) == [second, first]
    zoo.close()
    now = time.time()
    os.utime(tmp_path / "zoo" / f"{first}.keras", (now, now + 100))
    (tmp_path / "zoo" / "index.sqlite").unlink()
    with Zoo(tmp_path / "zoo") as again:
        assert ids(again.query(outline([4, 8]), Wanted(), count=2)) == [first, second]


def test_what_has_nothing_in_common_is_not_found(zoo: Zoo, add: Adder) -> None:
    assert zoo.query(outline([4, 8]), Wanted()) == []
    file = add.folder / "alien.keras"
    weight = Weight("w", "w", (Axis(3),))
    write_plain(file, Graph((Node("n", "Alien", (), (weight,)),), ()), Meta())
    zoo.add(file)
    assert zoo.query(outline([4, 8]), Wanted(), count=5) == []


def test_a_query_for_no_models_is_refused(zoo: Zoo) -> None:
    with pytest.raises(UserError, match="count is 0; it must be at least 1"):
        zoo.query(outline([4, 8]), Wanted(), count=0)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), "abcdef"),
        (Wanted(task="t"), "abcd"),
        (Wanted(task="T"), ""),
        (Wanted(dataset="d"), "acef"),
        (Wanted("t", "d"), "ac"),
        (Wanted(tags=("x",)), "bcd"),
        (Wanted(tags=("x", "y")), "cd"),
        (Wanted(tags=("x", "z")), ""),
        (Wanted(user="alice"), "abe"),
        (Wanted(user="bob"), "abef"),
        (Wanted(user=""), "ab"),
        (Wanted("t", "d", ("x",), "carol"), "c"),
    ],
)
def test_only_what_is_wanted_is_found(wanted: Wanted, expected: str, zoo: Zoo, add: Adder) -> None:
    add(zoo, [4, 8], name="a", task="t", dataset="d")
    add(zoo, [4, 8], name="b", task="t", dataset="e", tags=("x",))
    add(zoo, [4, 8], name="c", task="t", dataset="d", tags=("x", "y"), access=("carol",))
    add(zoo, [4, 8], name="d", task="t", tags=("y", "x", "w"), access=("carol",))
    add(zoo, [4, 8], name="e", task="u", dataset="d", access=("alice", "bob"))
    add(zoo, [4, 8], name="f", dataset="d", access=("bob",))
    found = zoo.query(outline([4, 8]), wanted, count=9)
    assert sorted(each.meta.name for each in found) == list(expected)


def test_who_may_use_what() -> None:
    assert may_use(Meta(), "anyone")
    assert may_use(Meta(access=("alice",)), "alice")
    assert not may_use(Meta(access=("alice",)), "alic")
    assert may_use(Meta(access=("alice",)), None)


def test_spaces_are_kept_with_the_graph(zoo: Zoo, add: Adder) -> None:
    graph = zoo.entry(add(zoo, [4, 8])).graph
    assert graph.spaces == (Space(4), Space(8))
    assert graph.nodes[1].weights[0].axes[0].segments == (Segment(0),)
