"""Layers measured in parts cost what they cost in the whole model; no rank has the whole model."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ooodist.compat.keras_deferred import release
from ooodist.engines.local import LocalEngine
from ooodist.pipeline.batches import BatchSplitter
from ooodist.pipeline.layers.attribution import saved_by_layer
from ooodist.pipeline.layers.in_parts import (
    PART_BYTES,
    equal_ranges,
    fewest_parts,
    is_small,
    measure_in_parts,
    measure_part,
    measure_small,
    traced_part,
    traced_saved,
)
from ooodist.pipeline.layers.measure import (
    CallSeconds,
    WeightBytes,
    layer_costs,
    measure_layers,
    weight_bytes_by_call,
)
from ooodist.pipeline.layers.part import Part
from ooodist.pipeline.stages import calls_of
from ooodist.planner.pipeline.layer_costs import LayerCost
from ooodist.profiler.step import StepToMeasure, trace_step
from tests.pipeline.jobs import run_mpi
from tests.pipeline.measuring_worker import FAILS, SAME, SMALL, TURNS
from tests.pipeline.models import MODELS

BYTES = ("base_bytes", "state_bytes", "input_bytes", "weight_bytes", "gradient_bytes", "sent_bytes")


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 5))
def test_ranges_are_about_equal(sizes: list[int], parts: int) -> None:
    ranges = equal_ranges([WeightBytes(size, size) for size in sizes], parts)
    assert [number for each in ranges for number in each] == [*range(len(sizes))]
    assert len(ranges) == min(parts, len(sizes))
    assert all(ranges)
    largest = max(sum(sizes[number] for number in each) for each in ranges)
    for cuts in itertools.combinations(range(1, len(sizes)), len(ranges) - 1):
        bounds = itertools.pairwise((0, *cuts, len(sizes)))
        assert largest <= max(sum(sizes[begin:end]) for begin, end in bounds)


SIZES = st.integers(0, PART_BYTES + PART_BYTES // 4)


@given(st.lists(SIZES, min_size=1, max_size=12), st.integers(1, 5))
def test_no_part_is_larger_than_allowed(sizes: list[int], ranks: int) -> None:
    """PART_BYTES, or the largest call, as a call is never divided."""
    held = [WeightBytes(size // 2, size - size // 2) for size in sizes]
    fewest = fewest_parts(held)
    most = max(PART_BYTES, *sizes)
    for parts in (fewest, max(ranks, fewest)):
        ranges = equal_ranges(held, parts)
        assert max(sum(sizes[number] for number in each) for each in ranges) <= most
    if fewest > 1:  # with fewer it cannot be
        ranges = equal_ranges(held, fewest - 1)
        assert max(sum(sizes[number] for number in each) for each in ranges) > most


def test_parts_of_a_model_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank measures several, if the model holds more than PART_BYTES."""
    model, batch = dense()
    held = weight_bytes_by_call(model, calls_of(model))
    most = max(call.state + call.gradients for call in held)
    monkeypatch.setattr("ooodist.pipeline.layers.in_parts.PART_BYTES", most)
    measured: list[range] = []

    def measure(part: Part, traced: StepToMeasure, count: int, steps: int) -> list[CallSeconds]:
        begin = sum(map(len, measured))
        measured.append(range(begin, begin + count))
        return [CallSeconds(1.0)] * count

    monkeypatch.setattr("ooodist.pipeline.layers.in_parts.measure_part", measure)
    model.optimizer.build(model.trainable_variables)
    release(model.variables[0], "nobody")  # so that the whole model cannot be measured at once
    costs = measure_in_parts(model, batch, 2, LocalEngine(), 1, steps=1)
    assert [cost.forward for cost in costs] == [1.0] * len(held)
    assert len(measured) > 1
    for part in measured:
        assert sum(held[at].state + held[at].gradients for at in part) <= most


def dense() -> tuple[keras.Model, object]:
    """Layers that take long enough to compare, one of them large."""
    x = image = keras.Input((64,))
    for width in (512, 512, 2048, 512, 512):
        x = keras.layers.Dense(width, activation="gelu")(x)
    model = keras.Model(image, keras.layers.Dense(4)(x))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, (np.ones((128, 64), np.float32), np.zeros(128, np.int32))


def in_parts(model: keras.Model, batch: object, parts: int) -> tuple[LayerCost, ...]:
    """As measured by so many ranks, one after another."""
    splitter, calls = BatchSplitter(model, batch, 2), calls_of(model)
    ranges = equal_ranges(weight_bytes_by_call(model, calls), parts)
    seconds: list[CallSeconds] = []
    for number, each in enumerate(ranges):
        with traced_part(splitter, ranges, number) as (part, traced):
            seconds += measure_part(part, traced, len(each), 3)
    return layer_costs(model, calls, splitter, seconds, traced_saved(splitter))


def test_seconds_are_those_in_the_whole_model() -> None:
    model, batch = dense()
    whole, parts = measure_layers(model, batch, 2), in_parts(model, batch, 3)
    one, other = (sum(cost.seconds for cost in costs) for costs in (whole, parts))
    assert 0.2 < other / one < 5, (one, other)  # others may use the cores
    for cost in parts:
        assert cost.forward > 0
        assert cost.weight_gradient > 0
        assert cost.update > 0
    # The widest layers have a part of their own: dX that only scales need is not taken for dW.
    for cost in parts[2:4]:
        assert cost.input_gradient > 0.25 * cost.weight_gradient, cost


@pytest.mark.parametrize("name", ["residual", "encoder_decoder"])
def test_bytes_are_those_in_the_whole_model(name: str) -> None:
    model, inputs, labels = MODELS[name]()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batch = tf.nest.map_structure(lambda one: tf.repeat(one, 16, axis=0), (inputs, labels))
    splitter, calls = BatchSplitter(model, batch, 2), calls_of(model)
    none = [CallSeconds()] * len(calls)
    saved = saved_by_layer(trace_step(model, splitter.first()), calls)  # as measure_layers does
    expected = layer_costs(model, calls, splitter, none, saved)
    found = layer_costs(model, calls, splitter, none, traced_saved(splitter))
    for one, other in zip(expected, found, strict=True):
        for key in BYTES:
            assert getattr(one, key) == getattr(other, key), (one.name, key)
    assert sum(cost.weight_bytes for cost in found) > 0


def test_one_rank_measures_the_whole_model() -> None:
    model, batch = dense()
    costs = measure_in_parts(model, batch, 2, LocalEngine(), 1, steps=1)
    assert [cost.name for cost in costs] == [call.name for call in calls_of(model)]
    assert all(cost.forward > 0 for cost in costs)
    assert is_small(model)
    costs, alone = measure_small(model, batch, 2, LocalEngine(), steps=1)
    assert [cost.name for cost in costs] == [call.name for call in calls_of(model)]
    assert alone is None


def test_large_models_are_not_small(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = dense()
    total = sum(
        call.state + call.gradients for call in weight_bytes_by_call(model, calls_of(model))
    )
    monkeypatch.setattr("ooodist.pipeline.layers.in_parts.SMALL_BYTES", total - 1)
    assert not is_small(model)


def test_several_ranks_each_measure_a_part() -> None:
    """Ranks without values have only those of their part, and only until it is measured."""
    cases = (SAME, SMALL, FAILS, TURNS)
    job = run_mpi(2, "measuring_worker.py", *cases)
    assert job.returncode == 0, job.stdout[-4000:]
    for case in cases:
        for rank in range(2):
            assert f"held: {case}, rank {rank}" in job.stdout, job.stdout
