"""Devices are divided among stages and replicas in the best of all ways, by trying them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts
from ooodist.planner.pipeline.plan import first_plan, make_plan
from ooodist.planner.placement.division import described, divide, ways_to_divide

LAYER = LayerCost(
    "layer",
    *(1.0, 1.0, 1.0),
    base_bytes=100,
    input_bytes=1,
    weight_bytes=1,
    sent_bytes=10,
    exchanged_bytes=100,
)


def costs_of(layers: int, link: float = 0.0, replica_link: float = 0.0) -> ModelCosts:
    """Equal layers; seconds per byte between stages, and between replicas."""
    return ModelCosts(
        (LAYER,) * layers,
        Link(seconds_per_byte=link),
        replica_link=Link(seconds_per_byte=replica_link),
    )


@given(st.integers(1, 300))
def test_each_way_uses_every_device_and_none_is_missed(devices: int) -> None:
    ways = ways_to_divide(devices)
    assert all(ranks * replicas == devices for ranks, replicas in ways)
    assert [ranks for ranks, _ in ways] == [n for n in range(devices, 0, -1) if devices % n == 0]


@given(
    st.sampled_from([1, 2, 3, 4, 6, 8]),
    st.integers(1, 3),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
    st.sampled_from(["auto", "1f1b", "zb_h1"]),
    st.none() | st.integers(100, 1000),
)
def test_none_is_faster_and_all_train_on_the_same(
    devices: int, more: int, link: float, ring: float, name: str, limit: int | None
) -> None:
    costs, microbatches = costs_of(8, link, ring), more * devices
    costs = replace(costs, memory_limit=limit)
    ways = divide(costs, devices, microbatches, name)
    assert {(way.ranks, way.replicas) for way in ways} == set(ways_to_divide(devices))
    seconds = [way.plan.timeline.step_seconds for way in ways if way.plan is not None]
    assert seconds == sorted(seconds)
    assert all(way.plan is not None for way in ways[: len(seconds)])
    for way in ways:
        assert (way.plan is None) == bool(way.refused)
        if way.plan is not None:
            schedule = way.plan.schedule
            assert schedule.ranks * way.replicas == devices
            assert schedule.microbatches * way.replicas == microbatches
            assert limit is None or max(way.plan.timeline.peak_bytes) <= limit
            again = replace(costs, replicas=way.replicas)
            if name == "auto":
                alone = first_plan(again, way.ranks, schedule.microbatches)
            else:
                alone = make_plan(again, way.ranks, schedule.microbatches, name)
            assert alone.timeline.step_seconds == way.plan.timeline.step_seconds


@pytest.mark.parametrize(
    ("link", "ring", "limit", "ranks"),
    [
        (0.0, 0.0, None, 1),  # without messages, there is no bubble
        (0.0, 1.0, None, 4),  # sums take longer than bubbles
        (0.0, 0.0, 510, 2),  # half of eight layers fits, with a few micro-batches
        (0.0, 0.0, 250, 4),
    ],
)
def test_stages_or_replicas(link: float, ring: float, limit: int | None, ranks: int) -> None:
    costs = replace(costs_of(8, link, ring), memory_limit=limit)
    assert divide(costs, 4, 8, "1f1b")[0].ranks == ranks


def test_what_is_said_of_each_way() -> None:
    costs = replace(costs_of(8), memory_limit=300)
    words = described(divide(costs, 4, 6, "1f1b"), 60).split("; ")
    seconds = make_plan(costs, 4, 6, "1f1b").timeline.step_seconds
    assert words[0] == f"4 x 1: {seconds * 1e3:.4g} ms a step ({60 / seconds:.4g} samples/s)"
    text = "; ".join(words)
    assert "1 x 4 cannot be: 6 micro-batches cannot be divided among 4 replicas" in text
    assert "2 x 2 cannot be: " in text
    assert "lacks" in text
    assert described(divide(costs, 4, 6, "1f1b")[:1]) == f"4 x 1: {seconds * 1e3:.4g} ms a step"


def test_replicas_need_to_know_what_they_exchange() -> None:
    costs = ModelCosts((replace(LAYER, exchanged_bytes=0),) * 2)
    both = {way.name: way for way in divide(costs, 2, 2, "1f1b")}
    assert both["2 x 1"].plan is not None
    assert "no layer has exchanged_bytes" in both["1 x 2"].refused
