"""The decomposition finds what models were made of, however they are numbered."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.transfer.graph.operators import Operator, Outline
from ooodist.transfer.graph.series_parallel import Element, Parallel, decompose
from tests.transfer.exhaustive import model_of, random_graph, random_model, renumbered

SEEDS = st.integers(0, 10**6)


def nested(outline: Outline) -> list[Any]:
    """The decomposition as numbers of operators, and lists of branches."""
    series = decompose(outline)

    def plain(element: Element) -> Any:
        if isinstance(element, int):
            return element
        return [list(map(plain, series[branch])) for branch in element.branches]

    return list(map(plain, series[-1]))


def kinds(outline: Outline) -> list[Any]:
    """The decomposition as kinds and shapes of operators, branches in an order of their own."""

    def plain(element: Any) -> Any:
        if isinstance(element, int):
            return f"{outline[element].op} {outline[element].shapes}"
        return sorted((list(map(plain, branch)) for branch in element), key=repr)

    return list(map(plain, nested(outline)))


def graph(*inputs: tuple[int, ...], op: str = "Op") -> Outline:
    """Operators that read these."""
    return tuple(Operator(op, each) for each in inputs)


def test_empty_single_and_chain() -> None:
    assert decompose(()) == ((),)
    assert nested(graph(())) == [0]
    assert nested(graph((), (0,), (1,), (2,))) == [0, 1, 2, 3]


def test_an_edge_from_the_fork_to_the_join_is_an_empty_branch() -> None:
    assert nested(graph((), (0,), (1,), (0, 2), (3,))) == [0, [[1, 2]], 3, 4]
    assert nested(graph((), (0,), (1,), (0,), (2, 3), (4,))) == [0, [[1, 2], [3]], 4, 5]
    assert nested(graph((), (0,), (0, 0, 1))) == [0, [[1]], 2]


def test_the_same_input_twice_is_one_edge() -> None:
    assert nested(graph((), (0, 0), (1, 1))) == [0, 1, 2]


def test_inner_series_come_first() -> None:
    """Of two levels: an inner residual block in one branch of an outer one."""
    series = decompose(graph((), (0,), (1,), (1, 2), (0,), (3, 4, 0), (5,)))
    assert series == (
        (2,),
        (4,),
        (1, Parallel((0,)), 3),
        (0, Parallel((2, 1)), 5, 6),
    )


def test_several_inputs_outputs_and_parts() -> None:
    assert nested(graph((), (), (0, 1), (2,), (2,))) == [[[0], [1]], 2, [[3], [4]]]
    assert nested(graph((), (), (0,), (1,))) == [[[0, 2], [1, 3]]]
    # One input of a join is forked before: no branch is empty, as the join reads no source.
    assert nested(graph((), (), (0,), (2, 1), (3,))) == [[[0, 2], [1]], 3, 4]


def test_crossing_edges_make_a_row() -> None:
    """Two inputs, each read by two outputs: only what is around is not in the row."""
    crossing = graph((), (0,), (0,), (1, 2), (1, 2), (3, 4), (5,))
    assert nested(crossing) == [0, 1, 2, 3, 4, 5, 6]
    beside_an_edge = graph((), (0,), (0,), (1, 2), (1, 2), (3, 4, 0), (5,))
    assert nested(beside_an_edge) == [0, [[1, 2, 3, 4]], 5, 6]


def test_a_row_keeps_chains_together_and_takes_the_longest_way_first() -> None:
    """A mask that each block reads: the blocks stay whole, though the mask crosses all of them."""
    outline = [Operator("Attention mask"), Operator("Input"), Operator("Embedding", (1,))]
    for _ in range(3):
        last = len(outline) - 1
        outline += [
            Operator("Dense", (last,)),
            Operator("Query", (last,)),
            Operator("Softmax", (last + 2, 0)),
            Operator("Weighted", (last + 1, last + 3)),
        ]
    (series,) = decompose(tuple(outline))
    names = [outline[number].op for number in series if isinstance(number, int)]
    first = [
        "Query",
        "Dense",
        "Attention mask",
        "Softmax",
        "Weighted",
    ]  # the mask, when nothing else can be
    block = ["Query", "Softmax", "Dense", "Weighted"]
    assert names == ["Input", "Embedding", *first, *block, *block]


@pytest.mark.parametrize("seed", range(20))
def test_finds_what_a_model_was_made_of(seed: int) -> None:
    """20 models each of 1 to 60 operators: the same enclose each operator."""
    generator = random.Random(seed)
    for _ in range(20):
        model = random_model(generator, generator.randint(1, 60))
        series = decompose(model.outline)
        around: dict[int, list[tuple[int, int]]] = {}
        todo: list[tuple[int, list[tuple[int, int]]]] = [(len(series) - 1, [])]
        while todo:
            number, outside = todo.pop()
            for element in series[number]:
                if isinstance(element, int):
                    around[element] = outside
                else:
                    parallel = min(element.branches)
                    todo += [(each, [*outside, (parallel, each)]) for each in element.branches]
        one_to_one = {
            (made, found)
            for number, all_made in enumerate(model.enclosing)
            for made, found in zip(all_made, around[number], strict=True)
        }
        assert len(one_to_one) == len({made for made, _ in one_to_one})
        assert len(one_to_one) == len({found for _, found in one_to_one})


@given(SEEDS, st.integers(0, 30))
def test_any_graph_is_a_topological_order_of_all_operators(seed: int, size: int) -> None:
    outline = random_graph(random.Random(seed), size)
    order: list[int] = []

    def walk(part: list[Any]) -> None:
        for element in part:
            if isinstance(element, int):
                order.append(element)
            else:
                assert element
                assert all(element), "Empty branches are left out."
                for branch in element:
                    walk(branch)

    walk(nested(outline))
    assert sorted(order) == list(range(size))
    for at, number in enumerate(order):
        assert set(outline[number].inputs) <= set(order[:at])
    for number, series in enumerate(decompose(outline)):
        for element in series:
            if isinstance(element, Parallel):
                assert max(element.branches) < number


@given(SEEDS, st.integers(1, 16))
def test_any_graph_is_the_same_however_it_is_numbered(seed: int, size: int) -> None:
    generator = random.Random(seed)
    outline = random_graph(generator, size)
    assert kinds(renumbered(outline, generator)[0]) == kinds(outline)


def test_nested_deeply() -> None:
    """Each level of a net like U-Net skips all that is inside: 1,000 levels."""
    levels = 1000
    down = [() if level == 0 else (level - 1,) for level in range(levels)]
    up = [(levels + at - 1, levels - 2 - at) for at in range(levels - 1)]
    series = decompose(graph(*down, *up))
    assert len(series) == levels
    assert series[0] == (levels - 1,)
    assert series[-1] == (0, Parallel((levels - 2,)), 2 * levels - 2)


@pytest.mark.parametrize("crossing", [False, True])
def test_10_000_operators(crossing: bool) -> None:
    """Residual blocks of two operators and a join; crossing: all read a mask, too."""
    inputs: list[tuple[int, ...]] = [(), (0,)]
    while len(inputs) < 10_000:
        last = len(inputs) - 1
        mask = (0,) if crossing else ()
        inputs += [(last, *mask), (last + 1,), (last, last + 2)]
    start = time.process_time()
    found = nested(graph(*inputs))
    assert time.process_time() - start < 5  # 0.1 s on a free machine
    assert len(found) == (len(inputs) if crossing else 2 + 2 * 3333)


def test_model_of_is_what_is_written() -> None:
    """A branch of two, an empty one, and one that forks again."""
    model = model_of(["A", [["B", "D"], [], ["A", [["B"], ["C"]], "D"]], "D"])
    assert [each.inputs for each in model.outline] == [
        (),
        (0,),
        (1,),
        (0,),
        (3,),
        (3,),
        (4, 5),
        (0, 2, 6),
    ]
    assert nested(model.outline) == [0, [[1, 2], [3, [[4], [5]], 6]], 7]
