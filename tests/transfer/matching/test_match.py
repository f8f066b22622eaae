"""The matcher: as good as the best of all matchings, whole blocks, speed and memory."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.transfer.graph.operators import Operator, Outline
from ooodist.transfer.matching.candidates import upper_bound
from ooodist.transfer.matching.match import Match, match, prepare, score, scores
from tests.processor_time import fastest
from tests.transfer.exhaustive import (
    ancestors,
    best_score,
    dense_net,
    gain,
    matchings,
    model_of,
    plain_net,
    random_graph,
    random_model,
    renumbered,
    residual_net,
    several_of_each,
    zoo_of,
)

SEEDS = st.integers(0, 10**6)


def sum_of_gains(child: Outline, parent: Outline, found: Match) -> float:
    return math.fsum(gain(child, parent, *pair) for pair in found.pairs)


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("kinds", ["A", "AB", "ABCD"])
def test_as_good_as_the_best_of_all_matchings(seed: int, kinds: str) -> None:
    """20 pairs of models each of 1 to 7 operators, 900 in all."""
    generator = random.Random(f"{kinds} {seed}")
    for _ in range(20):
        child, parent = (random_model(generator, generator.randint(1, 7), kinds) for _ in "ab")
        one, other = prepare(child.outline), prepare(parent.outline)
        found = match(one, other)
        assert found.score == pytest.approx(best_score(child, parent), abs=1e-12)
        assert found.score == pytest.approx(sum_of_gains(child.outline, parent.outline, found))
        assert list(found.pairs) in list(matchings(child, parent))
        assert score(one, other) == pytest.approx(found.score, abs=1e-9)
        assert upper_bound(one, [other])[0] >= found.score - 1e-9


def test_gains_by_hand() -> None:
    """Masses 9 and 33 of 10 and 34; 8 of 32 parameters are similar, and the one is equal."""
    child = (Operator("InputLayer"), Operator("Dense", (0,), ((2, 4),)))
    parent = (Operator("InputLayer"), Operator("Dense", (0,), ((4, 8),)))
    similar = (40 * (1 + 3 * 0.25) / 4 + 2) / (40 + 2)
    expected = 1 / 34 + similar * 9 / 10
    assert match(prepare(child), prepare(parent)).score == pytest.approx(expected, abs=1e-12)


def test_weights_of_other_ranks_leave_the_one() -> None:
    """Also where a bias is missing: two weights of ranks 2 and 1, one of rank 2."""
    one = prepare((Operator("Dense", (), ((3, 3), (3,))),))
    other = prepare((Operator("Dense", (), ((3, 3),)),))
    found = match(one, other)
    assert found.pairs == ((0, 0),)
    assert found.score == pytest.approx(2 / (13 + 10))


def test_other_kinds_do_not_match() -> None:
    one, other = prepare((Operator("Conv2D:relu"),)), prepare((Operator("Conv2D:linear"),))
    assert match(one, other) == Match(0.0, ())
    assert upper_bound(one, [other]).tolist() == [0.0]


def test_branches_and_operators_do_not_match() -> None:
    row, forked = model_of(["D", "A", "D"]), model_of(["D", [["A"], []], "D"])
    found = match(prepare(row.outline), prepare(forked.outline))
    assert found.pairs == ((0, 0), (2, 2))


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8, 16, 33])
def test_a_model_fits_itself(blocks: int) -> None:
    for outline in [residual_net([16] * blocks), *several_of_each(min(blocks, 12))]:
        found = match(prepare(outline), prepare(outline))
        assert found.score == pytest.approx(1, abs=1e-12)
        assert found.pairs == tuple((number, number) for number in range(len(outline)))
        assert score(prepare(outline), prepare(outline)) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_symmetric_and_the_same_however_it_is_numbered(size: int) -> None:
    generator = random.Random(size)
    nets = several_of_each(size) + several_of_each(size + 2)
    prepared = [prepare(outline) for outline in nets]
    for number, (outline, one) in enumerate(zip(nets, prepared, strict=True)):
        again, new = renumbered(outline, generator)
        one_again = prepare(again)
        assert match(one, one_again).score == pytest.approx(1, abs=1e-12)
        for parent, other in zip(nets[number:], prepared[number:], strict=True):
            there = match(one, other)
            assert match(other, one).score == pytest.approx(there.score, abs=1e-11)
            anew = match(one_again, other)
            assert anew.score == pytest.approx(there.score, abs=1e-11)
            assert sum_of_gains(again, parent, anew) == pytest.approx(anew.score, abs=1e-11)
        assert sorted(new) == list(range(len(outline)))


@given(SEEDS, st.integers(0, 14), st.integers(0, 14))
def test_any_graphs(seed: int, ours: int, theirs: int) -> None:
    """One to one, the same kinds, along each path in order; symmetric; within the bound."""
    generator = random.Random(seed)
    child, parent = random_graph(generator, ours), random_graph(generator, theirs)
    one, other = prepare(child), prepare(parent)
    found = match(one, other)
    assert all(child[u].op == parent[v].op for u, v in found.pairs)
    assert len(found.pairs) == len({u for u, _ in found.pairs}) == len({v for _, v in found.pairs})
    before, before_there = ancestors(child), ancestors(parent)
    for u, v in found.pairs:
        for earlier, earlier_there in found.pairs:
            assert not (earlier in before[u] and v in before_there[earlier_there])
    assert 0 <= found.score <= 1
    assert found.score == pytest.approx(sum_of_gains(child, parent, found), abs=1e-12)
    assert match(other, one).score == pytest.approx(found.score, abs=1e-11)
    assert score(one, other) == pytest.approx(found.score, abs=1e-9)
    again, _ = renumbered(child, generator)
    assert match(prepare(again), other).score == pytest.approx(found.score, abs=1e-11)
    (bound,) = upper_bound(one, [other])
    assert found.score - 1e-9 <= bound <= 1 + 1e-9


def test_empty_and_disconnected() -> None:
    nothing, single = prepare(()), prepare((Operator("Dense"),))
    assert match(nothing, nothing) == match(nothing, single) == match(single, nothing)
    assert match(nothing, nothing) == Match(0.0, ())
    assert match(single, single) == Match(1.0, ((0, 0),))
    assert scores(nothing, [nothing, single]).tolist() == [0.0, 0.0]
    assert upper_bound(nothing, [nothing, single]).tolist() == [0.0, 0.0]
    parts = (Operator("A"), Operator("B"), Operator("A", (0,)), Operator("B", (1,)))
    other = (Operator("B"), Operator("B", (0,)), Operator("A"), Operator("A", (2,)))
    assert match(prepare(parts), prepare(other)) == Match(1.0, ((0, 2), (1, 0), (2, 3), (3, 1)))


def test_sizes_of_zero_and_scalars() -> None:
    outline = (Operator("A", (), ((0, 3), ())), Operator("A", (0,), ((2, 3), ())))
    assert match(prepare(outline), prepare(outline)).score == pytest.approx(1, abs=1e-12)


def blocks_of(found: Match, start: int, size: int, count: int) -> list[tuple[int, int]]:
    """Blocks of the child and the parent that match; each operator of one, or none."""
    partner = dict(found.pairs)
    blocks = []
    for block in range(count):
        inside = range(start + block * size, start + (block + 1) * size)
        others = [partner[number] for number in inside if number in partner]
        if others:
            assert len(others) == size, "A block matches as a whole."
            there, rest = divmod(others[0] - start, size)
            assert (rest, others) == (0, list(range(others[0], others[0] + size)))
            blocks.append((block, there))
    return blocks


@pytest.mark.parametrize(("ours", "theirs"), [(6, 3), (3, 6), (7, 2), (33, 5)])
@pytest.mark.parametrize("net", [plain_net, residual_net])
def test_blocks_match_as_a_whole_and_early_ones(
    net: Callable[[Sequence[int]], Outline], ours: int, theirs: int
) -> None:
    found = match(prepare(net([16] * ours)), prepare(net([16] * theirs)))
    start, size = (1, 3) if net is plain_net else (4, 7)
    if net is plain_net:  # the first reads the image
        assert found.pairs[:4] == ((0, 0), (1, 1), (2, 2), (3, 3))
    fewer = min(ours, theirs)
    assert blocks_of(found, start, size, ours) == [(block, block) for block in range(fewer)]
    assert len(found.pairs) == start + fewer * size + 2  # with all that is around the blocks


def test_stages_match_stages() -> None:
    """Each has more blocks; those with which it begins, with a projection, fit one another."""
    child = [16] * 5 + [32] * 6 + [64] * 4
    parent = [16] * 3 + [32] * 2 + [64] * 3
    found = match(prepare(residual_net(child)), prepare(residual_net(parent)))
    assert len(found.pairs) == len(residual_net(parent))
    assert found.score > 0.6  # the child has more parameters
    partner = dict(found.pairs)
    starts, there = block_starts(child), block_starts(parent)
    matched = [0, 1, 2, 5, 6, 11, 12, 13]
    assert [starts.index(at) for at in starts if at in partner] == matched
    assert [partner[starts[block]] for block in matched] == there


def block_starts(widths: Sequence[int]) -> list[int]:
    """Numbers of the first operators of the blocks of a residual net."""
    starts, at, ins = [], 4, widths[0]
    for width in widths:
        starts.append(at)
        at, ins = at + (7 if width == ins else 9), width
    return starts


def test_parameters_decide_before_operators_without() -> None:
    """One convolution gains more than many activations, which are what else could match."""
    child = (Operator("Conv2D", (), ((3, 3, 8, 8),)), *chain_of("ReLU", 20, 0))
    parent = (*chain_of("ReLU", 20), Operator("Conv2D", (19,), ((3, 3, 8, 8),)))
    assert match(prepare(child), prepare(parent)).pairs == ((0, 20),)


def chain_of(op: str, count: int, reads: int | None = None) -> Outline:
    first = 0 if reads is None else reads + 1
    return tuple(
        Operator(op, (number - 1,) if number else ()) for number in range(first, first + count)
    )


def test_a_wider_model_is_less_similar() -> None:
    child = prepare(residual_net([16] * 4))
    parents = [prepare(residual_net([width] * 4)) for width in (16, 20, 32, 64)]
    found = scores(child, parents)
    assert found[0] == 1.0
    assert (np.diff(found) < 0).all()
    assert found[2] == pytest.approx(0.43, abs=0.02)  # 1/4 + 3/4 of a quarter, for kernels


def test_operators_of_next_to_no_share_match_too() -> None:
    """A score cannot show 1 of 1e16."""
    outline = (*chain_of("ReLU", 3), Operator("Dense", (2,), ((10**8, 10**8),)))
    found = match(prepare(outline), prepare(outline))
    assert found.score == pytest.approx(1, abs=1e-12)
    assert found.pairs == ((0, 0), (1, 1), (2, 2), (3, 3))


def test_many_branches() -> None:
    """More than are listed: all are found in any order."""
    generator = random.Random(0)
    sizes = list(range(1, 10))
    outlines = []
    for _ in range(2):
        generator.shuffle(sizes)
        towers = [Operator("Dense", (0,), ((size, size),)) for size in sizes]
        join = Operator("Concatenate", tuple(range(1, 10)))
        outlines.append((Operator("InputLayer"), *towers, join))
    found = match(*map(prepare, outlines))
    assert found.score == pytest.approx(1, abs=1e-12)
    assert all(outlines[0][u].shapes == outlines[1][v].shapes for u, v in found.pairs)


def test_scores_of_many_are_those_of_each() -> None:
    zoo = [prepare(outline) for outline in zoo_of(60)]
    for child in zoo[:5]:
        assert scores(child, zoo).tolist() == [score(child, parent) for parent in zoo]
    assert scores(zoo[0], []).tolist() == []


LARGE = {
    "chain": (plain_net([8 + at // 20 for at in range(333)]), plain_net([16] * 333)),
    "residual": (
        residual_net([16 << (at // 36) for at in range(141)]),
        residual_net([16 << (at // 47) for at in range(141)]),
    ),
    "residual, each block of its own width": (
        residual_net([16 + at for at in range(110)]),
        residual_net([17 + 2 * at for at in range(110)]),
    ),
    "random": tuple(random_model(random.Random(seed), 1000).outline for seed in (1, 2)),
    "dense": (dense_net(249, 4), dense_net(249, 8)),  # 249 * 250 / 2 edges cross
}


@pytest.mark.parametrize("case", LARGE)
def test_large_models_are_matched_fast_and_in_little_memory(case: str) -> None:
    """0.05 to 0.15 s, and 3 MB, on a free machine."""
    child, parent = map(prepare, LARGE[case])
    assert min(len(child.outline), len(parent.outline)) >= 990
    seconds = fastest(lambda: match(child, parent), runs=3)
    tracemalloc.start()
    found = match(child, parent)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{case}: {seconds:.3f} s, {peak / 1e6:.1f} MB, score {found.score:.3f}")
    assert seconds < 0.5
    assert peak < 100e6


def test_a_large_model_is_prepared_fast() -> None:
    for case, (outline, _) in LARGE.items():
        assert fastest(lambda outline=outline: prepare(outline), runs=2) < 1, case  # type: ignore[misc]


def test_10_000_operators() -> None:
    """Slower, but with no limit of size or of nesting."""
    child, parent = prepare(residual_net([16] * 1430)), prepare(residual_net([16] * 20))
    assert len(child.outline) > 10_000
    found = match(child, parent)
    assert len(found.pairs) == len(parent.outline)


def test_nested_deeply() -> None:
    """A net like U-Net of 700 levels: each is in a branch of the one above it."""
    levels = 700
    down = [Operator("Conv2D", (at - 1,) if at else (), ((3, 3, 4, 4),)) for at in range(levels)]
    up = [Operator("Add", (levels + at - 1, levels - 2 - at)) for at in range(levels - 1)]
    deep = prepare((*down, *up))
    assert match(deep, deep).score == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_of_equal_branches_that_without_more_operators_is_taken(at: int) -> None:
    """A pooling ahead of a convolution changes what it makes, wherever that branch stands."""
    branches = [["C"], ["C", "D"]]
    parent = model_of(["A", branches, "A"])
    child = model_of(["A", [*branches[:at], ["B", "C"], *branches[at:]], "A"])
    found = match(prepare(child.outline), prepare(parent.outline))
    ops = [each.op for each in child.outline]
    matched = {ours for ours, _ in found.pairs}
    assert [number for number in range(len(ops)) if number not in matched] == [
        ops.index("B"),
        ops.index("B") + 1,
    ]
