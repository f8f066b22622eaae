"""Clusters: each model is next to its medoid, and a query over them finds what a full one finds."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.transfer.graph.operators import Operator, Outline
from ooodist.transfer.matching.candidates import candidates
from ooodist.transfer.matching.match import Prepared, prepare, scores
from ooodist.zoo.clusters import (
    LEAST_MEMBERS,
    LEAST_MODELS,
    distances,
    find_medoids,
    is_due,
    k_medoids,
    near,
    nearest,
    update,
)
from ooodist.zoo.entry import Meta
from ooodist.zoo.index import Index, Row
from tests.thorough import few

KINDS = ("plain", "residual", "dense", "attention", "separable", "recurrent", "norm", "tanh")


def family(kind: str, blocks: int, width: int) -> Outline:
    """A model of blocks of one kind."""
    w = width
    norm = ("BatchNormalization", ((w,),) * 4)
    block: dict[str, list[tuple[str, tuple[tuple[int, ...], ...]]]] = {
        "plain": [("Conv2D", ((3, 3, w, w), (w,))), norm, ("relu", ())],
        "residual": [("Conv2D", ((3, 3, w, w),)), ("relu", ()), ("Add", ())],
        "dense": [("Dense", ((w, w), (w,))), ("relu", ())],
        "attention": [("LayerNormalization", ((w,), (w,))), ("MHA", ((w, 4, w),) * 4), ("Add", ())],
        "separable": [("DepthwiseConv2D", ((3, 3, w, 1),)), ("Conv2D", ((1, 1, w, w),)), norm],
        "recurrent": [("LSTM", ((w, 4 * w), (w, 4 * w), (4 * w,)))],
        "norm": [("Dense", ((w, w),)), norm, ("gelu", ())],
        "tanh": [("Conv1D", ((5, w, w), (w,))), ("tanh", ()), ("MaxPooling1D", ())],
    }  # fmt: skip
    operators = [Operator("Input")]
    for _ in range(blocks):
        start = len(operators) - 1
        for op, shapes in block[kind]:
            before = len(operators) - 1
            inputs = (start, before) if op == "Add" else (before,)
            operators.append(Operator(op, inputs, shapes))
    operators.append(Operator("Dense", (len(operators) - 1,), ((w, 10), (10,))))
    return tuple(operators)


def random_outline(generator: random.Random) -> Outline:
    kind = generator.choice(KINDS)
    return family(kind, generator.randint(3, 16), generator.choice([8, 12, 16, 24, 32, 64]))


def zoo_of(count: int, seed: int) -> dict[str, Outline]:
    generator = random.Random(seed)
    return {f"model-{number:05}": random_outline(generator) for number in range(count)}


class Models:
    """Models in an index, and prepared."""

    def __init__(self, folder: Path) -> None:
        self.index = Index(folder / "index.sqlite")
        self.prepared: dict[str, Prepared] = {}
        self.asked: set[str] = set()

    def add(self, outlines: dict[str, Outline]) -> None:
        for name, outline in outlines.items():
            self.prepared[name] = prepare(outline)
            self.index.put([(Row(name, Meta(), 1, 1, 0.0), outline)])

    def delete(self, names: Collection[str]) -> None:
        self.index.delete(names)
        for name in names:
            del self.prepared[name]

    def prepare(self, names: Collection[str]) -> dict[str, Prepared]:
        self.asked |= set(names)
        return {name: self.prepared[name] for name in names if name in self.prepared}

    def update(self) -> dict[str, str]:
        update(self.index, self.prepare)
        return self.index.clusters()


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Models]:
    made = Models(tmp_path)
    yield made
    made.index.close()


def check_each_is_next_to_its_medoid(models: Models) -> None:
    medoid_of = models.index.clusters()
    medoids = sorted(set(medoid_of.values()))
    assert set(medoids) <= set(medoid_of)
    for name, medoid in medoid_of.items():
        to_all = distances(models.prepared[name], [models.prepared[each] for each in medoids])
        assert to_all[medoids.index(medoid)] <= to_all.min() + 1e-9, name
        if name in medoids:
            equal = models.prepared[name].digest == models.prepared[medoid].digest
            assert name == medoid or equal


# Medoids


def cost(table: np.ndarray, medoids: Collection[int]) -> float:
    return float(table[list(medoids)].min(axis=0).sum())


@given(st.integers(2, 30), st.integers(1, 5), st.integers(0, 999))
def test_medoids_are_no_worse_than_random_ones(size: int, count: int, seed: int) -> None:
    count = min(count, size)
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(size, 2))
    table = np.linalg.norm(points[:, None] - points[None], axis=2)
    found = k_medoids(table, count)
    assert len(set(found.tolist())) == count
    assert found.tolist() == sorted(found.tolist())
    others = [generator.choice(size, count, replace=False) for _ in range(20)]
    assert cost(table, found) <= np.median([cost(table, each) for each in others]) + 1e-9


def test_groups_that_are_far_apart_have_a_medoid_each() -> None:
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(6, 2)) * 100
    points = np.concatenate([center + generator.normal(size=(20, 2)) for center in centers])
    table = np.linalg.norm(points[:, None] - points[None], axis=2)
    assert sorted(number // 20 for number in k_medoids(table, 6)) == [0, 1, 2, 3, 4, 5]


def test_as_many_medoids_as_models_are_all_of_them() -> None:
    table = 1 - np.eye(4)
    assert k_medoids(table, 4).tolist() == [0, 1, 2, 3]
    assert k_medoids(np.zeros((3, 3)), 3).tolist() == [0, 1, 2]


def test_equal_models_are_one_place() -> None:
    """Else medoids would stand upon each other, and clusters be empty."""
    outlines = [family("plain", 3, 8)] * 20 + [family("dense", 3, 8)] * 20
    found = find_medoids([prepare(outline) for outline in outlines])
    assert sorted(number // 20 for number in found) == [0, 1]


def test_the_same_models_have_the_same_medoids() -> None:
    models = [prepare(outline) for outline in zoo_of(60, 3).values()]
    assert find_medoids(models) == find_medoids(models)
    assert len(find_medoids(models)) == 8


def test_medoids_of_many_models_are_looked_for_in_a_sample() -> None:
    models = [prepare(outline) for outline in zoo_of(1500, 1).values()]
    start = time.process_time()
    found = find_medoids(models)
    assert time.process_time() - start < 30
    assert len(found) == 39  # the root of 1500
    assert len({models[number].digest for number in found}) == 39


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
@few(20)
def test_nearest_is_the_nearest(many: int, few: int, seed: int) -> None:
    """The smaller number of calls is made, whichever that is."""
    models = [prepare(outline) for outline in zoo_of(many, seed).values()]
    medoids = [prepare(outline) for outline in zoo_of(few, seed + 1000).values()]
    for model, at in zip(models, nearest(models, medoids), strict=True):
        to_all = distances(model, medoids)
        assert to_all[at] == pytest.approx(to_all.min(), abs=1e-9)


def test_distance_is_0_to_itself_and_1_to_what_is_nothing_like_it() -> None:
    one, other = prepare(family("plain", 4, 8)), prepare((Operator("Alien", (), ((3, 3),)),))
    assert distances(one, [one, other]) == pytest.approx([0, 1])


# In the index


def test_a_small_zoo_has_no_clusters(models: Models) -> None:
    models.add(zoo_of(LEAST_MODELS, 0))
    assert set(models.update().values()) == {""}
    assert not models.asked


def test_each_model_is_in_the_cluster_of_the_medoid_next_to_it(models: Models) -> None:
    models.add(zoo_of(240, 0))
    assert 12 <= len(set(models.update().values())) <= 16
    check_each_is_next_to_its_medoid(models)


def test_new_models_join_and_orphans_move_without_a_look_at_the_rest(models: Models) -> None:
    models.add(zoo_of(240, 0))
    before = models.update()
    medoids = set(before.values())
    models.add({"new-1": family("plain", 5, 20), "new-2": family("tanh", 4, 9)})
    gone = sorted(medoids)[0]
    orphans = {name for name, medoid in before.items() if medoid == gone} - {gone}
    models.delete([gone])
    models.asked.clear()
    after = models.update()
    assert models.asked == medoids - {gone} | orphans | {"new-1", "new-2"}
    assert {name for name in after if after[name] != before.get(name)} == orphans | {
        "new-1",
        "new-2",
    }
    check_each_is_next_to_its_medoid(models)
    models.asked.clear()
    assert models.update() == after
    assert not models.asked


def test_clusters_are_made_anew_when_the_zoo_has_grown_by_half(models: Models) -> None:
    zoo = list(zoo_of(320, 0).items())
    models.add(dict(zoo[:210]))
    first = set(models.update().values())
    models.add(dict(zoo[210:314]))
    assert set(models.update().values()) == first
    models.add(dict(zoo[314:]))
    second = models.update()
    assert len(set(second.values())) == 18
    assert models.index.clustered() == 320
    check_each_is_next_to_its_medoid(models)


@pytest.mark.parametrize(
    ("count", "clustered", "due"),
    [(200, 0, False), (201, 0, True), (201, 201, False), (301, 201, False), (302, 201, True)],
)
def test_when_clusters_are_made_anew(count: int, clustered: int, due: bool) -> None:
    assert is_due(count, clustered) == due


def test_without_any_medoid_left_clusters_are_made_anew(models: Models) -> None:
    models.add(zoo_of(260, 0))
    models.delete(sorted(set(models.update().values())))
    assert "" not in models.update().values()
    check_each_is_next_to_its_medoid(models)


# Queries


def test_near_gives_members_of_the_best_clusters_and_what_is_in_none() -> None:
    prepared = {
        f"{kind}-{blocks}": prepare(family(kind, blocks, 16))
        for kind in ("plain", "dense", "attention", "recurrent")
        for blocks in range(2, 62)
    }
    medoid_of = {name: f"{name.partition('-')[0]}-30" for name in prepared}
    medoid_of |= {"new": "", "orphan": "gone"}
    child = prepare(family("dense", 9, 16))

    def prepared_of(names: Collection[str]) -> dict[str, Prepared]:
        return {name: prepared[name] for name in names}

    found = near(child, medoid_of, medoid_of, prepared_of, 1)
    assert found[:2] == ["new", "orphan"]
    assert found[2].startswith("dense-")
    assert len(found) == 2 + 3 * 60
    assert LEAST_MEMBERS < 180
    everything = near(child, medoid_of, medoid_of, prepared_of, 200)
    assert sorted(everything) == sorted(medoid_of)
    pool = ["dense-2", "plain-3"]  # whose medoids are not in the pool
    assert near(child, pool, medoid_of, prepared_of, 1) == pool


def test_a_clustered_query_finds_what_the_full_one_finds(models: Models) -> None:
    """Of 40 new models, nearly all have the best score, and the rest one close to it."""
    models.add(zoo_of(1000, 5))
    medoid_of = models.update()
    names = list(models.prepared)
    same, losses, compared = 0, [], []
    for outline in zoo_of(40, 77).values():
        child = prepare(outline)
        full = candidates(child, list(models.prepared.values()))
        pool = near(child, names, medoid_of, models.prepare, 2)
        clustered = candidates(child, [models.prepared[name] for name in pool])
        same += clustered[0][1] == full[0][1]
        losses.append(full[0][1] - clustered[0][1])
        compared.append(len(pool) + len(set(medoid_of.values())))
    print(f"same {same} of 40, worst loss {max(losses):.3f}, compared {np.mean(compared):.0f}")
    assert same >= 38
    assert max(losses) < 0.1
    assert np.mean(compared) < 400


def test_medoids_tell_families_apart() -> None:
    """The bound that distances come from is near enough to the score for that."""
    groups = [prepare(family(kind, 8, 16)) for kind in KINDS]
    for at, kind in enumerate(KINDS):
        child = prepare(family(kind, 6, 24))
        assert int(distances(child, groups).argmin()) == at
        assert int(scores(child, groups).argmax()) == at
