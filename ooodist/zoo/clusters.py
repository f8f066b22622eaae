"""Clusters of similar models, so that a query in a large zoo need not look at all of them.

A cluster is made of the models that are nearest to its medoid, the one in its middle. A query is
compared with the medoids first and then with the members of the best clusters. The distance of two
models is 1 less the bound on their score: cheap, and small only for models of the same operators.
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

LEAST_MODELS = 200  # up to so many, all are compared
GROWTH = 1.5  # clusters are made anew when there are so many times more models
MOST_SAMPLED = 300  # models among which medoids are looked for, as time grows with the square
MOST_ROUNDS = 20
LEAST_CLUSTERS = 3  # whose members a query is compared with
LEAST_MEMBERS = 100  # of these together

Prepare = Callable[[Collection[str]], dict[str, Prepared]]
"""Gives models for their ids, without those that are no longer there."""


def distances(model: Prepared, others: Sequence[Prepared]) -> Floats:
    """From a model to each of the others, 0 to 1."""
    return 1 - upper_bound(model, others)


def find_medoids(models: Sequence[Prepared], count: int | None = None) -> list[int]:
    """Numbers of the models in the middle of clusters; the same for the same models.

    Args:
        models: at least one.
        count: clusters; None: the square root of the models.
    """
    if count is None:
        count = round(math.sqrt(len(models)))
    # Equal models are one place: two medoids there would be one cluster less.
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
    """Medoids such that the summed distances to the nearest are small, in rising order.

    Each next start is the one that lowers the sum the most; then medoids move to the middle of
    their clusters until none does.

    Args:
        table: distances, (models, models), symmetric, 0 to itself.
        count: medoids, 1 to the number of models.
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
        members[medoids] = np.arange(count)  # also where two medoids are at distance 0
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
    """For each model the number of the medoid next to it; the first of several.

    Args:
        models: any.
        medoids: at least one.
    """
    if len(models) < len(medoids):
        return np.array([distances(model, medoids).argmin() for model in models], int)
    return np.array([distances(medoid, models) for medoid in medoids]).argmin(axis=0)


def update(index: Index, prepare: Prepare) -> None:
    """Puts every model into the cluster of the medoid next to it; with few models there is none.

    Clusters stay as they are while the zoo grows by half; new models join them.

    Args:
        index: of the zoo.
        prepare: what gives models for their ids.
    """
    medoid_of = index.clusters()
    if len(medoid_of) <= LEAST_MODELS:
        return
    medoids = sorted({each for each in medoid_of.values() if each in medoid_of})
    anew = not medoids or is_due(len(medoid_of), index.clustered())
    if anew:
        joining = [*medoid_of]
        medoids = [joining[number] for number in find_medoids([*prepare(joining).values()])]
    else:  # new ones, and those whose medoid is gone
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
    """Those models of a pool that are in the clusters next to a new model.

    They are at least of three clusters, 100 and ``count``, as far as there are so many. Models of
    no known cluster are among them.

    Args:
        child: the new model.
        pool: ids.
        medoid_of: ids by ids; empty text: not known.
        prepare: what gives models for their ids.
        count: models that the caller needs.
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
    """Whether clusters are to be made anew.

    Args:
        models: that there are.
        clustered: that there were when they were made last; 0 if never.
    """
    return models > LEAST_MODELS and (clustered == 0 or models >= GROWTH * clustered)
