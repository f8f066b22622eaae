"""Splits of layers into stages, against all splits that there are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.pipeline.costs import LacksMemory
from ooodist.planner.pipeline.layer_costs import LayerCost
from ooodist.planner.pipeline.partition import partition, smallest_parts

LAYERS = st.lists(
    st.builds(
        LayerCost,
        name=st.just("x"),
        forward=st.integers(0, 16).map(lambda number: number / 8),
        base_bytes=st.integers(0, 9),
        weight_bytes=st.integers(0, 9),
        sent_bytes=st.integers(0, 9),
    ),
    min_size=1,
    max_size=8,
)


def all_splits(layers: int, stages: int) -> list[tuple[range, ...]]:
    return [
        tuple(itertools.starmap(range, itertools.pairwise((0, *cuts, layers))))
        for cuts in itertools.combinations(range(1, layers), stages - 1)
    ]


def slowest(layers: list[LayerCost], split: tuple[range, ...]) -> float:
    return max(sum(layers[at].seconds for at in stage) for stage in split)


def sent(layers: list[LayerCost], split: tuple[range, ...]) -> int:
    return sum(layers[stage[-1]].sent_bytes for stage in split[:-1])


def most_bytes(layers: list[LayerCost], split: tuple[range, ...], in_flight: list[int]) -> int:
    return max(
        sum(layers[at].base_bytes + count * layers[at].saved_bytes for at in stage)
        for stage, count in zip(split, in_flight, strict=True)
    )


@given(LAYERS, st.data())
def test_no_split_is_faster_or_sends_less(layers: list[LayerCost], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(layers)))
    found = partition(layers, stages)
    assert found in all_splits(len(layers), stages)
    best = min(
        (slowest(layers, split), sent(layers, split)) for split in all_splits(len(layers), stages)
    )
    assert (slowest(layers, found), sent(layers, found)) == best


@given(LAYERS, st.data())
def test_the_memory_limit_is_kept(layers: list[LayerCost], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(layers)))
    in_flight = [data.draw(st.integers(1, 3)) for _ in range(stages)]
    limit = data.draw(st.integers(0, 100))
    fitting = [
        split
        for split in all_splits(len(layers), stages)
        if most_bytes(layers, split, in_flight) <= limit
    ]
    if not fitting:
        message = f"fits into a memory limit of {limit} bytes a stage"
        with pytest.raises(LacksMemory, match=message) as refused:
            partition(layers, stages, in_flight=in_flight, memory_limit=limit)
        splits = all_splits(len(layers), stages)
        least = min(most_bytes(layers, split, in_flight) for split in splits)
        assert refused.value.lacking == least - limit
        assert f"lacks {least - limit} of {least} bytes" in str(refused.value)
        assert partition(layers, stages, in_flight=in_flight, memory_limit=least) in splits
        return
    found = partition(layers, stages, in_flight=in_flight, memory_limit=limit)
    assert most_bytes(layers, found, in_flight) <= limit
    assert slowest(layers, found) == min(slowest(layers, split) for split in fitting)


@given(LAYERS, st.data())
def test_no_split_needs_less_memory(layers: list[LayerCost], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(layers)))
    ones = [1] * stages
    least = min(most_bytes(layers, split, ones) for split in all_splits(len(layers), stages))
    assert most_bytes(layers, smallest_parts(layers, stages), ones) == least


def test_the_stage_that_lacks_memory_is_named() -> None:
    layers = [LayerCost("a", 1, base_bytes=5), LayerCost("b", 1, base_bytes=70, weight_bytes=2)]
    layers += [LayerCost("c", 1, base_bytes=60)]
    with pytest.raises(LacksMemory, match="stage 1, of layers 1 to 1, lacks 6 of 76 bytes; raise"):
        partition(layers, 3, in_flight=[3, 3, 1], memory_limit=70)


def test_seconds_that_are_no_exact_sums() -> None:
    """Splits that are equally fast count as such, whatever the last digits of their sums."""
    layers = [LayerCost(str(i), 0.1, sent_bytes=i) for i in range(9)]
    assert partition(layers, 3) == (range(3), range(3, 6), range(6, 9))
    layers = [LayerCost(str(i), 0.1, sent_bytes=10 - i) for i in range(5)]
    assert partition(layers, 2) == (range(3), range(3, 5))  # 0.3 s either way; 8 bytes and not 9


def test_a_slow_layer_is_alone() -> None:
    layers = [LayerCost("a", 1), LayerCost("b", 5), LayerCost("c", 1), LayerCost("d", 1)]
    assert partition(layers, 3) == (range(1), range(1, 2), range(2, 4))


@pytest.mark.parametrize("stages", [0, 4])
def test_too_many_stages(stages: int) -> None:
    for split in (partition, smallest_parts):
        with pytest.raises(UserError, match=f"3 layers cannot be split into {stages} stages"):
            split([LayerCost("x", 1)] * 3, stages)


def test_many_layers() -> None:
    layers = [LayerCost(str(i), 1 + i % 3, sent_bytes=i % 7) for i in range(200)]
    found = partition(layers, 16)
    assert [at for stage in found for at in stage] == list(range(200))
    assert slowest(layers, found) <= sum(layer.seconds for layer in layers) / 16 + 3
