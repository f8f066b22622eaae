"""A query finds a parent of the bucket that a comparison with every model finds, in any zoo."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ooodist.transfer.graph.graph import Axis, Graph, Node, Space, Weight
from ooodist.transfer.graph.operators import outline_of
from ooodist.transfer.matching.candidates import bucket_of
from ooodist.transfer.matching.match import prepare, scores
from ooodist.zoo.entry import Meta
from ooodist.zoo.zoo import BUCKETS, Wanted, Zoo
from tests.thorough import few
from tests.zoo.entries import write_plain

GROUP, DECOYS = 60, 3


def chain(*parts: tuple[str, int]) -> Graph:
    """So many operators of each of these kinds, in a row."""
    nodes = [Node("input:0", "Input")]
    for kind, count in parts:
        for _ in range(count):
            number = len(nodes)
            weight = Weight(f"w{number}", "w", (Axis(8), Axis(8)))
            nodes.append(Node(f"n{number}", kind, (number - 1,), (weight,)))
    return Graph(tuple(nodes), (Space(1),))


def zoo_of(generator: random.Random) -> list[Graph]:
    """What is most like a chain of kind ``b`` is, by most of its operators, one of another group.

    It is one of 60 that share kind ``a`` and have a kind of their own; three groups are nearer to
    ``b`` on the whole.
    """
    own = ["b", *(f"own{number}" for number in range(1, GROUP))]
    models = [chain(("a", generator.randint(10, 12)), (kind, 9)) for kind in own]
    for decoy in range(DECOYS):
        models += [
            chain((f"decoy{decoy}", generator.randint(14, 18)), ("b", 4)) for _ in range(GROUP)
        ]
    generator.shuffle(models)
    return models


@given(st.integers(0, 10**6))
@few(2)
def test_the_best_parent_is_of_the_highest_bucket_that_there_is(seed: int) -> None:
    generator = random.Random(seed)
    models = zoo_of(generator)
    everything = [prepare(outline_of(model)) for model in models]
    with tempfile.TemporaryDirectory() as folder:
        for number, model in enumerate(models):
            file = Path(folder, f"m{number:03}.keras")
            write_plain(file, model, Meta(), store=lambda _: None)
        with Zoo(folder) as zoo:
            for length in range(9, 13):
                child = outline_of(chain(("b", length)))
                (found,) = zoo.query(child, Wanted())
                best = scores(prepare(child), everything).max()
                assert bucket_of(found.score, BUCKETS) == bucket_of(best, BUCKETS)
