"""Clusters of similar models, so that a query in a large zoo need not compare all of them.

A cluster consists of the models nearest to its medoid, the model at its center. A query is compared
with the medoids first and then with the members of the best clusters. The distance of two models is
1 minus the upper bound on their score: cheap, and small only for models with the same operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ooodist.transfer.matching.candidates import upper_bound
from ooodist.transfer.matching.match import Prepared, scores
from ooodist.zoo.index import Index

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

LEAST_MODELS = 200  # up to this number, all are compared
GROWTH = 1.5  # factor of growth at which clusters are made anew
MOST_SAMPLED = 300  # candidates for medoids; time grows with the square
MOST_ROUNDS = 20
LEAST_CLUSTERS = 3  # clusters whose members a query is compared with
LEAST_MEMBERS = 100  # total members of these clusters

Prepare = Callable[[Collection[str]], dict[str, Prepared]]
"""Returns prepared models by id, without those that no longer exist."""


def distances(model: Prepared, others: Sequence[Prepared]) -> Floats:
    """Returns the distances of a model to the others, shape (others,), each 0 to 1."""
    return 1 - upper_bound(model, others)


def find_medoids(models: Sequence[Prepared], count: int | None = None) -> list[int]:
    """Returns the indices of the models that become medoids; deterministic.

    Args:
        models: at least one model.
        count: number of clusters; None for the square root of the number of models.
    """
    if count is None:
        count = round(math.sqrt(len(models)))
    # Equal models count once: two equal medoids would waste a cluster.
    first_of: dict[str, int] = {}
    for number, model in enumerate(models):
        first_of.setdefault(model.digest, number)
    places = np.array(list(first_of.values()))
    if places.size > MOST_SAMPLED:
        places = np.random.default_rng(0).choice(places, MOST_SAMPLED, replace=False)
    sample = [models[number] for number in places]
    table = np.zeros((len(sample), len(sample)))
    for number, model in enumerate(sample[:-1]):
        table[number, number + 1 :] = distances(model, sample[number + 1 :])
    table += table.T
    return places[k_medoids(table, min(count, len(sample)))].tolist()


def k_medoids(table: Floats, count: int) -> Integers:
    """Returns ``count`` medoids, sorted, with a small sum of distances to the nearest medoid.

    Initial medoids are added greedily, each the one that lowers the sum the most; then medoids
    move to the centers of their clusters until none moves (at most 20 rounds).

    Args:
        table: distances, shape (models, models), symmetric, zero on the diagonal.
        count: number of medoids, from 1 to the number of models.
    """
    medoids = [int(table.sum(axis=0).argmin())]
    nearest = table[medoids[0]].copy()
    while len(medoids) < count:
        gains = np.maximum(nearest - table, 0).sum(axis=1)
        gains[medoids] = -1
        medoids.append(int(gains.argmax()))
        np.minimum(nearest, table[medoids[-1]], out=nearest)
    for _ in range(MOST_ROUNDS):
        members = table[medoids].argmin(axis=0)
        members[medoids] = np.arange(count)  # even if two medoids are at distance 0
        moved = []
        for number in range(count):
            inside = np.flatnonzero(members == number)
            sums = table[np.ix_(inside, inside)].sum(axis=1)
            moved.append(int(inside[sums.argmin()]))
        if moved == medoids:
            break
        medoids = moved
    return np.array(sorted(medoids))


def nearest(models: Sequence[Prepared], medoids: Sequence[Prepared]) -> Integers:
    """Returns the index of the nearest medoid for each model; the first one if tied.

    Args:
        models: any number of models.
        medoids: at least one model.
    """
    if len(models) < len(medoids):
        return np.array([distances(model, medoids).argmin() for model in models], int)
    return np.array([distances(medoid, models) for medoid in medoids]).argmin(axis=0)


def update(index: Index, prepare: Prepare) -> None:
    """Assigns every model to the cluster of its nearest medoid, unless the zoo is small.

    Clusters are kept until the zoo has grown by half; new models join them.

    Args:
        index: index of the zoo.
        prepare: returns prepared models for ids.
    """
    medoid_of = index.clusters()
    if len(medoid_of) <= LEAST_MODELS:
        return
    medoids = sorted({each for each in medoid_of.values() if each in medoid_of})
    anew = not medoids or is_due(len(medoid_of), index.clustered())
    if anew:
        joining = [*medoid_of]
        medoids = [joining[number] for number in find_medoids([*prepare(joining).values()])]
    else:  # new models, and those whose medoid is gone
        joining = [model for model, medoid in medoid_of.items() if medoid not in medoid_of]
    if joining:
        numbers = nearest([*prepare(joining).values()], [*prepare(medoids).values()])
        index.set_clusters(
            {model: medoids[at] for model, at in zip(joining, numbers, strict=True)},
            len(medoid_of) if anew else None,
        )


def near(
    child: Prepared,
    pool: Iterable[str],
    medoid_of: Mapping[str, str],
    prepare: Prepare,
    count: int,
) -> list[str]:
    """Returns the ids in a pool that belong to the clusters nearest to a new model.

    They come from at least three clusters and number at least 100 and ``count``, where the pool
    has that many. Models without a known cluster are included.

    Args:
        child: the new model.
        pool: ids to choose from.
        medoid_of: id of the medoid by id of the model; empty if unknown.
        prepare: returns prepared models for ids.
        count: number of models that the caller needs.
    """
    members: dict[str, list[str]] = {}
    for model in pool:
        medoid = medoid_of.get(model, "")
        members.setdefault(medoid if medoid in medoid_of else "", []).append(model)
    found = members.pop("", [])
    medoids = prepare(members)
    similar = dict(zip(medoids, scores(child, [*medoids.values()]).tolist(), strict=True))
    for number, medoid in enumerate(sorted(similar, key=lambda each: -similar[each])):
        if number >= LEAST_CLUSTERS and len(found) >= max(LEAST_MEMBERS, count):
            break
        found += members[medoid]
    return found


def is_due(models: int, clustered: int) -> bool:
    """Returns whether the clusters are to be made anew.

    Args:
        models: number of models.
        clustered: number of models when the clusters were last made; 0 if never.
    """
    return models > LEAST_MODELS and (clustered == 0 or models >= GROWTH * clustered)
