"""Stages made of layers: nothing is lost, and files say what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.pipeline.layer_costs import (
    LayerCost,
    Link,
    ModelCosts,
    balanced_parts,
    merged,
    read_model_costs,
    sharded,
    stage_costs,
)
from ooodist.util import yaml_dataclass

NUMBERS = st.integers(0, 9)
EIGHTHS = NUMBERS.map(lambda number: number / 8)
LAYERS = st.lists(
    st.builds(
        LayerCost,
        name=st.just("x"),
        forward=EIGHTHS,
        input_gradient=EIGHTHS,
        weight_gradient=EIGHTHS,
        update=EIGHTHS,
        base_bytes=NUMBERS,
        input_bytes=NUMBERS,
        weight_bytes=NUMBERS,
        gradient_bytes=NUMBERS,
        sent_bytes=NUMBERS,
        exchanged_bytes=NUMBERS,
    ),
    min_size=4,
    max_size=10,
)
SUMMED = (
    *("forward", "input_gradient", "weight_gradient", "update"),
    *("base_bytes", "input_bytes", "weight_bytes", "gradient_bytes"),
)


@given(LAYERS, st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1)]))
def test_stages_have_all_that_layers_have(layers: list[LayerCost], size: tuple[int, int]) -> None:
    costs = ModelCosts(tuple(layers), Link(0.5, 0.25))
    [parts] = balanced_parts(costs, *size, microbatches=3)
    stages = stage_costs(costs, parts).stages
    assert len(stages) == size[0] * size[1]
    for name in SUMMED:
        total = sum(getattr(layer, name) for layer in layers)
        assert sum(getattr(stage, name) for stage in stages) == total
    for part, stage, behind in zip(parts, stages, [*stages[1:], None], strict=True):
        last = layers[part.stop - 1]
        if behind is None:
            assert (stage.sent_bytes, stage.send_seconds) == (0, 0.0)
            continue
        assert stage.sent_bytes == last.sent_bytes
        expected = 0.5 + 0.25 * last.sent_bytes if last.sent_bytes else 0.0
        assert stage.send_seconds == behind.send_back_seconds == expected
    assert stages[0].send_back_seconds == 0.0


@given(LAYERS, st.data())
def test_layers_that_are_merged_are_one_stage(layers: list[LayerCost], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(layers) - 1))
    parts = [range(cut), range(cut, len(layers))]
    costs = ModelCosts(tuple(layers), Link(0.5, 0.25), recompute=data.draw(st.booleans()))
    one = replace(costs, layers=merged(layers, parts))
    assert [layer.name for layer in one.layers] == ["x", "x"]
    assert balanced_parts(one, 2, 1, 3) == [(range(1), range(1, 2))]
    assert stage_costs(one, [range(1), range(1, 2)]) == stage_costs(costs, parts)


@given(LAYERS)
def test_recomputing_keeps_what_was_received_and_runs_f_again(layers: list[LayerCost]) -> None:
    costs = ModelCosts(tuple(layers))
    parts = [range(2), range(2, len(layers))]
    kept, again = (stage_costs(c, parts).stages for c in (costs, replace(costs, recompute=True)))
    for one, other, received in zip(kept, again, (0, layers[1].sent_bytes), strict=True):
        assert other.forward == one.forward
        assert other.input_gradient == one.forward + one.input_gradient
        assert other.weight_gradient == one.weight_gradient
        assert (other.input_bytes, other.weight_bytes) == (received, 0)
        assert other.gradient_bytes == one.weight_bytes + one.gradient_bytes


def test_a_split_for_recomputing_counts_f_twice() -> None:
    layers = (LayerCost("a", forward=3.0), *[LayerCost("b", weight_gradient=2.0)] * 4)
    sizes = {
        recompute: [len(part) for part in balanced_parts(costs, 2, 1, 8)[0]]
        for recompute in (False, True)
        if (costs := ModelCosts(layers, recompute=recompute))
    }
    assert sizes == {False: [2, 3], True: [1, 4]}


def test_the_memory_limit_counts_what_is_in_flight() -> None:
    """1F1B keeps more micro-batches on the first ranks, so they get fewer of equal layers."""
    layers = tuple(LayerCost(str(n), forward=1.0, weight_bytes=10) for n in range(6))

    def sizes(limit: int | None, microbatches: int) -> list[list[int]]:
        splits = balanced_parts(ModelCosts(layers, memory_limit=limit), 2, 1, microbatches)
        return [[len(part) for part in parts] for parts in splits]

    assert sizes(None, 8) == [[3, 3]]
    assert sizes(40, 8) == [[2, 4], [3, 3]]  # a schedule may keep less than 1F1B
    assert sizes(40, 1) == [[3, 3]]
    assert sizes(30, 8) == [[3, 3]]


def test_the_gradients_of_one_micro_batch_are_counted() -> None:
    """Two micro-batches are in flight on rank 0, and one of them has gradients."""
    large = LayerCost("0", forward=1.0, weight_bytes=50, gradient_bytes=20)
    layers = (large, *[LayerCost("x", forward=1.0, weight_bytes=5, gradient_bytes=20)] * 4)
    # 2 x 50 + 20 = 120 bytes; with the next layer it would be 2 x 55 + 40.
    splits = balanced_parts(ModelCosts(layers, memory_limit=120), 2, 1, 8)
    assert [[len(part) for part in parts] for parts in splits] == [[1, 4], [2, 3]]
    assert len(balanced_parts(ModelCosts(layers, memory_limit=119), 2, 1, 8)) == 1


@given(LAYERS, st.integers(1, 5), st.sampled_from([None, Link(0.25, 0.5)]))
def test_replicas_sum_the_gradients_of_each_stage(
    layers: list[LayerCost], replicas: int, between: Link | None
) -> None:
    if not any(layer.exchanged_bytes for layer in layers):
        layers[0] = replace(layers[0], exchanged_bytes=1)
    costs = ModelCosts(tuple(layers), Link(0.5, 0.125), replicas=replicas, replica_link=between)
    link = between or costs.link
    parts = [range(2), range(2, len(layers))]
    stages = stage_costs(costs, parts).stages
    for part, stage in zip(parts, stages, strict=True):
        num_bytes = sum(layers[place].exchanged_bytes for place in part)
        # Of a ring: every member sends a part of its gradients to the next, again and again.
        trip = (
            link.seconds(1) - link.seconds_per_byte + num_bytes / replicas * link.seconds_per_byte
        )
        expected = sum(trip for _ in range(2 * (replicas - 1))) if num_bytes else 0.0
        assert stage.exchange == pytest.approx(expected)
    alone = stage_costs(replace(costs, replicas=1), parts).stages
    assert alone == tuple(replace(stage, exchange=0.0) for stage in stages)


@given(LAYERS, st.sampled_from([(0, 1, 2), (0, 1, 0, 1), (0, 1, 1, 0), (0, 1, 2, 0)]), st.data())
def test_each_message_takes_its_own_link(
    layers: list[LayerCost], rank_of: tuple[int, ...], data: st.DataObject
) -> None:
    ranks = max(rank_of) + 1
    links = tuple(
        tuple(Link(data.draw(EIGHTHS), data.draw(EIGHTHS)) for _ in range(ranks))
        for _ in range(ranks)
    )
    costs = ModelCosts(tuple(layers), Link(99.0), links=links)
    last = len(rank_of) - 1
    parts = [*(range(stage, stage + 1) for stage in range(last)), range(last, len(layers))]
    stages = stage_costs(costs, parts, rank_of).stages
    assert (stages[0].send_back_seconds, stages[-1].send_seconds) == (0, 0)
    for stage in range(last):
        here, there = rank_of[stage], rank_of[stage + 1]
        sent = stages[stage].sent_bytes
        assert stages[stage].send_seconds == (links[here][there].seconds(sent) if sent else 0)
        back = links[there][here].seconds(sent) if sent else 0
        assert stages[stage + 1].send_back_seconds == back


def test_links_of_other_ranks() -> None:
    layers = (LayerCost("a", 1.0), LayerCost("b", 1.0))
    for links in (((Link(),) * 3,) * 3, ((Link(),) * 2,) * 3, ((Link(), Link()), (Link(),))):
        costs = ModelCosts(layers, links=links)
        with pytest.raises(UserError, match=r"links has \d rows, .* but the pipeline has 2 ranks"):
            stage_costs(costs, [range(1), range(1, 2)])


def test_replicas_need_the_bytes_that_they_exchange(tmp_path: Path) -> None:
    file = tmp_path / "costs.yaml"
    file.write_text("layers: [{name: a, forward: 1}]\n")  # as it was written before
    costs = read_model_costs(file)
    assert stage_costs(costs, [range(1)]).stages[0].exchange == 0
    with pytest.raises(
        UserError, match=r"2 replicas of a pipeline sum .* no layer has exchanged_bytes"
    ):
        replace(costs, replicas=2)


def test_a_file_and_back(tmp_path: Path) -> None:
    layers = (LayerCost("a", 1.0, sent_bytes=3, exchanged_bytes=4), LayerCost("b"))
    links = ((Link(), Link(2e-3)), (Link(3e-3), Link()))
    costs = ModelCosts(
        layers, Link(1e-3, 1e-9), 99, replicas=2, replica_link=Link(1e-2), links=links
    )
    file = tmp_path / "costs.yaml"
    file.write_text(yaml_dataclass.dump(costs))
    assert read_model_costs(file) == costs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--costs .* cannot be read"),
        ("layers: [", "this is not valid YAML"),
        ("layers: []\nlimks: 3", "there is no key limks.*did you mean link"),
        ("layers: []\nlinks: 3", "links is 3; it must be a list, each item a list"),
        ("layers: []\nreplicas: 0", "replicas is 0; it must be .*at least 1"),
        (
            "layers: [{name: a, forward: -1}]",
            r"layers\[0\].forward is -1; it must be a number, at least 0",
        ),
    ],
)
def test_files_with_faults(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "costs.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_model_costs(file)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(1, 9))
def test_replicas_divide_optimizer_state_alone(
    gradients: int, weights: int, optimizer: int, replicas: int
) -> None:
    """Nothing is lost, and rounding does not make it fit where it does not."""
    state = weights + optimizer
    layer = LayerCost(
        "a", 1.0, base_bytes=gradients + state, state_bytes=state, optimizer_bytes=optimizer
    )
    found = sharded(layer, replicas)
    assert found.base_bytes - found.state_bytes == gradients
    assert found.state_bytes - found.optimizer_bytes == weights
    assert optimizer <= replicas * found.optimizer_bytes < optimizer + replicas
    assert sharded(layer, 1) == layer
    plain = replace(layer, optimizer_bytes=0)  # of a file that does not tell them apart
    assert sharded(plain, replicas) == plain
