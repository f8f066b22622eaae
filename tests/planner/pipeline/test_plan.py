"""From a name to stages, ranks and actions."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.pipeline import check as pipeline_check
from ooodist.planner.pipeline.actions import from_csv, to_csv, trained_from
from ooodist.planner.pipeline.costs import LacksMemory, PipelineCosts, equal_stages, forward_only
from ooodist.planner.pipeline.dependencies import with_transfers
from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts
from ooodist.planner.pipeline.plan import (
    AUTO,
    FURTHER_STAGE,
    NAMES,
    PipelinePlan,
    check_name,
    first_plan,
    make_plan,
    make_plans,
    placed,
    reschedule,
)
from ooodist.planner.pipeline.simulate import peak_bytes, simulate_pipeline

RANKS, MICROBATCHES = 2, 4
COSTS = ModelCosts(
    tuple(LayerCost(str(n), 1.0, 1.0, 1.0, weight_bytes=10, sent_bytes=1) for n in range(8)),
    Link(0.125),
)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_makes_a_schedule_that_runs(name: str) -> None:
    plan = make_plan(COSTS, RANKS, MICROBATCHES, name)
    pipeline_check.check(plan.schedule, plan.costs)
    assert plan.schedule.name == name
    assert [layer for part in plan.parts for layer in part] == list(range(8))
    assert len(plan.parts) == plan.schedule.stages == len(plan.costs.stages)
    assert plan.timeline.step_seconds >= 8 * 3 * MICROBATCHES / RANKS


@pytest.mark.parametrize(("name", "chunks"), [("gpipe", 2), ("interleaved", 4), ("push", 1)])
def test_chunks(name: str, chunks: int) -> None:
    plan = make_plan(COSTS, RANKS, MICROBATCHES, name, chunks)
    assert plan.schedule.rank_of == tuple(stage % RANKS for stage in range(RANKS * chunks))


def test_auto_tries_all_placements_and_is_the_best() -> None:
    plans = list(make_plans(COSTS, RANKS, MICROBATCHES, AUTO))
    placements = [(0, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 1, 0, 1, 0, 1)]
    # Then those with more chunks, of which a named schedule is faster.
    assert [plan.schedule.rank_of for plan in plans][: len(placements)] == placements
    best = make_plan(COSTS, RANKS, MICROBATCHES, AUTO)
    assert best in plans
    for name in NAMES:
        other = make_plan(COSTS, RANKS, MICROBATCHES, name)
        assert best.timeline.step_seconds <= other.timeline.step_seconds + 1e-9


@pytest.mark.parametrize("hop", [0.0, 2.0])
@pytest.mark.parametrize("microbatches", [1, 8])
def test_the_first_plan_is_the_best_with_a_name_and_few_chunks(
    hop: float, microbatches: int
) -> None:
    """Of more chunks, each has to pay for itself."""
    layers = replace(COSTS.layers[0], weight_bytes=1)
    costs = ModelCosts((layers,) * 24, Link(hop))
    first = first_plan(costs, 4, microbatches)
    pipeline_check.check(first.schedule, first.costs)

    def seconds(plan: PipelinePlan) -> float:
        more = plan.schedule.stages // plan.schedule.ranks - 1
        return plan.timeline.step_seconds * (1 + FURTHER_STAGE * more)

    for name in NAMES:
        for chunks in (None, 1, 2, 3):
            with contextlib.suppress(UserError):  # not with so many chunks
                other = make_plan(costs, 4, microbatches, name, chunks)
                assert seconds(first) <= seconds(other) * (1 + 1e-9)
    one = first_plan(costs, 4, microbatches, 1)
    assert one.schedule.stages == 4
    assert first_plan(ModelCosts(costs.layers[:4]), 4, microbatches).schedule.stages == 4
    with pytest.raises(UserError, match="layers"):
        first_plan(ModelCosts(costs.layers[:3]), 4, microbatches)


@pytest.mark.parametrize(("hop", "layers"), [(0.0, 24), (0.02, 24), (0.02, 48), (2.0, 24)])
def test_auto_is_as_fast_as_named_ones_with_more_chunks(hop: float, layers: int) -> None:
    """Where hops cost next to nothing, more chunks have less of a bubble."""
    one = LayerCost("x", 1.0, 1.0, 1.0, weight_bytes=1, sent_bytes=1)
    costs = ModelCosts((one,) * layers, Link(hop))
    best = make_plan(costs, 4, 8, AUTO).timeline.step_seconds
    for name, chunks in itertools.product(("interleaved", "modulo"), (2, 3, 4, 6)):
        other = make_plan(costs, 4, 8, name, chunks)
        assert best <= other.timeline.step_seconds + 1e-9, (name, chunks)


def test_without_a_barrier_the_steps_among_many_count() -> None:
    """An update that takes long on one rank does not delay the next step of the others."""
    *others, last = COSTS.layers
    layers = (*others, replace(last, forward=3.0, update=6.0))
    costs = replace(COSTS, layers=layers, has_barrier=False)
    best, known = make_plan(costs, RANKS, MICROBATCHES, AUTO), first_plan(costs, RANKS, 4, 1)
    for name in NAMES:
        other = make_plan(costs, RANKS, MICROBATCHES, name)
        assert not other.costs.has_barrier
        assert best.period <= other.period * (1 + 1e-9)
        if other.schedule.stages == RANKS:
            assert known.period <= other.period * (1 + 1e-9)
    assert best.seconds == best.period < best.timeline.step_seconds


def test_auto_with_chunks_has_so_many() -> None:
    for plan in make_plans(COSTS, RANKS, MICROBATCHES, AUTO, 1):
        assert plan.schedule.rank_of == (0, 1)


def test_auto_with_few_layers() -> None:
    """Not enough for two chunks: one it is. Not enough for one: an error."""
    few = ModelCosts(COSTS.layers[:3])
    assert make_plan(few, RANKS, MICROBATCHES, AUTO).schedule.stages == 2
    with pytest.raises(UserError, match="1 layers cannot be split into 2 stages"):
        make_plan(ModelCosts(COSTS.layers[:1]), RANKS, MICROBATCHES, AUTO)


@pytest.mark.parametrize("name", [*NAMES, AUTO])
def test_the_links_are_those_of_the_ranks_on_which_stages_are(name: str) -> None:
    """Only rank 2 sends to rank 0, where a rank has several stages round-robin."""
    slow = Link(9.0)
    links = [[Link()] * 3 for _ in range(3)]
    links[2][0] = links[0][2] = slow
    costs = replace(COSTS, links=tuple(map(tuple, links)))
    for plan in make_plans(costs, 3, MICROBATCHES, name):
        rank_of = plan.schedule.rank_of
        for stage, (here, there) in enumerate(itertools.pairwise(rank_of)):
            expected = 9.0 if (here, there) == (2, 0) else 0.0
            assert plan.costs.stages[stage].send_seconds == expected
            assert plan.costs.stages[stage + 1].send_back_seconds == expected
    best = first_plan(costs, 3, MICROBATCHES)
    assert best.timeline.step_seconds < make_plan(costs, 3, MICROBATCHES, "push").timeline.makespan


def test_under_a_memory_limit() -> None:
    limit = 8 * 10  # two micro-batches of four layers
    limited = ModelCosts(COSTS.layers, COSTS.link, limit)
    for name in ("1f1b", AUTO):
        plan = make_plan(limited, RANKS, MICROBATCHES, name)
        assert max(peak_bytes(plan.schedule, plan.costs)) <= limit
    with pytest.raises(UserError, match=f"memory limit is {limit}"):
        make_plan(limited, RANKS, MICROBATCHES, "gpipe")


LAYERS = st.lists(
    st.builds(
        LayerCost,
        name=st.sampled_from(["a", "b"]),
        forward=st.integers(1, 8).map(lambda number: number / 8),
        weight_gradient=st.integers(0, 8).map(lambda number: number / 8),
        base_bytes=st.integers(0, 40),
        input_bytes=st.integers(0, 9),
        weight_bytes=st.integers(0, 9),
        gradient_bytes=st.integers(0, 9),
    ),
    min_size=3,
    max_size=6,
)


def kept(layers: Sequence[LayerCost]) -> int:
    """What these layers keep with one micro-batch in flight."""
    return sum(
        layer.base_bytes + layer.input_bytes + layer.weight_bytes + layer.gradient_bytes
        for layer in layers
    )


def most_kept(plan: PipelinePlan, layers: Sequence[LayerCost]) -> int:
    """The most that a rank keeps, counted tensor by tensor."""
    most = 0
    for actions in plan.schedule.actions:
        own = [
            layers[at] for stage in {action.stage for action in actions} for at in plan.parts[stage]
        ]
        base = sum(layer.base_bytes for layer in own)
        live: dict[tuple[str, int, int], int] = {}
        for stage, kind, microbatch in actions:
            those = [layers[at] for at in plan.parts[stage]]
            for_input, for_weight, gradient = (
                (name, stage, microbatch) for name in ("input", "weight", "gradient")
            )
            if kind == "F":
                live[for_input] = sum(layer.input_bytes for layer in those)
                live[for_weight] = sum(layer.weight_bytes for layer in those)
            if kind in ("I", "B"):
                live[gradient] = sum(layer.gradient_bytes for layer in those)
            most = max(most, base + sum(live.values()))
            if kind in ("I", "B"):
                del live[for_input]
            if kind in ("W", "B"):
                del live[for_weight], live[gradient]
    return most


@given(LAYERS, st.integers(1, 3), st.integers(1, 4), st.integers(0, 60))
def test_what_is_planned_fits_and_what_is_refused_could_not(
    layers: list[LayerCost], ranks: int, microbatches: int, above: int
) -> None:
    """One stage a rank: one micro-batch at a time needs least, and some split least of all."""
    cuts = itertools.combinations(range(1, len(layers)), ranks - 1)
    splits = [itertools.pairwise((0, *those, len(layers))) for those in cuts]
    least = min(max(kept(layers[begin:end]) for begin, end in split) for split in splits)
    for limit in {least, least + above}:
        costs = ModelCosts(tuple(layers), memory_limit=limit)
        plan = first_plan(costs, ranks, microbatches, chunks=1)
        assert most_kept(plan, layers) <= limit
    for limit in {least - 1, max(0, least - above)}:
        if 0 <= limit < least:
            costs = ModelCosts(tuple(layers), memory_limit=limit)
            with pytest.raises(
                LacksMemory, match=f"lacks {least - limit} of {least} byte"
            ) as error:
                first_plan(costs, ranks, microbatches, chunks=1)
            assert error.value.lacking == least - limit
            assert f"raise the limit by {least - limit}" in str(error.value)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", AUTO])
def test_a_limit_that_is_too_low_names_stages_and_layers(name: str) -> None:
    costs = replace(COSTS, memory_limit=9)
    with pytest.raises(LacksMemory, match="raise the limit by ") as error:
        make_plan(costs, RANKS, MICROBATCHES, name)
    *_, last = str(error.value).splitlines()
    if name == "interleaved":
        assert last == "stages: 0 0 to 1, 1 2 to 3, 2 4 to 5, 3 6 to 7"
    else:
        assert last == "stages: 0 0 to 3, 1 4 to 7"
    if name == AUTO:
        assert "(0 of weights and optimizer state" in str(error.value)
        assert error.value.lacking == 40 - 9  # of four layers
    plan = make_plan(
        replace(costs, memory_limit=9 + error.value.lacking), RANKS, MICROBATCHES, name
    )
    assert max(peak_bytes(plan.schedule, plan.costs)) == 9 + error.value.lacking


def test_a_schedule_from_a_file(tmp_path: Path) -> None:
    made = make_plan(COSTS, RANKS, MICROBATCHES, "zb_v")
    file = tmp_path / "mine.csv"
    file.write_text(to_csv(made.schedule))
    plan = make_plan(COSTS, RANKS, MICROBATCHES, str(file))
    assert plan.schedule.actions == made.schedule.actions
    assert plan.parts == made.parts
    assert plan.costs == made.costs
    with pytest.raises(UserError, match="is for 2 ranks and 4 micro-batches, but pipeline is 4"):
        make_plan(COSTS, 4, MICROBATCHES, str(file))
    with pytest.raises(UserError, match=r"has 4 stages, but parallel\.split makes 2"):
        placed((range(4), range(4, 8)), equal_stages(2), RANKS, MICROBATCHES, str(file))
    file.write_text("0F0,0B0\n1F0,1B0,2F0,2B0")
    with pytest.raises(UserError, match="has 3 stages on 2 ranks"):
        make_plan(COSTS, RANKS, 1, str(file))


@pytest.mark.parametrize("name", [*NAMES, AUTO])
def test_other_costs_keep_the_stages(name: str) -> None:
    plan = make_plan(COSTS, RANKS, MICROBATCHES, name)
    measured = equal_stages(plan.schedule.stages, 2.0, 1.0, 0.5)
    again = reschedule(plan, name, measured)
    assert again.parts == plan.parts
    assert again.schedule.rank_of == plan.schedule.rank_of
    assert again.costs == measured
    if name in ("1f1b", "gpipe", "zb_v"):  # they do not follow the costs
        assert again.schedule == plan.schedule


def uneven(stages: int) -> PipelineCosts:
    """Stages that differ in all that they cost."""
    one = equal_stages(1).stages[0]
    return PipelineCosts(
        tuple(
            replace(
                one,
                forward=1 + 0.25 * (number % 3),
                weight_gradient=0.5 + 0.25 * (number % 2),
                send_seconds=0.125,
                send_back_seconds=0.125,
                update=0.5 * (number % 4),
            )
            for number in range(stages)
        )
    )


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        *((name, None) for name in NAMES),
        *itertools.product(("gpipe", "interleaved", "modulo", "push"), (1, 3)),
    ],
)
def test_the_first_stages_of_a_plan_only_run_forward(name: str, chunks: int | None) -> None:
    layers = ModelCosts(COSTS.layers + COSTS.layers)
    for ranks, microbatches in ((2, 4), (3, 2), (4, 6)):
        plan = make_plan(layers, ranks, microbatches, name, chunks)
        costs = uneven(plan.schedule.stages)
        for first in range(plan.schedule.stages):
            made = reschedule(plan, name, costs, first)
            assert made.schedule.name == name
            assert made.schedule.first_trained == first
            assert (made.schedule.rank_of, made.parts) == (plan.schedule.rank_of, plan.parts)
            assert made.costs == forward_only(costs, first)
            pipeline_check.check(with_transfers(made.schedule), made.costs)
            assert from_csv(to_csv(made.schedule), name) == made.schedule
            full = reschedule(plan, name, made.costs)
            assert trained_from(full.schedule, first) == made.schedule
            assert made.timeline.step_seconds <= full.timeline.step_seconds + 1e-9
            assert made.timeline == simulate_pipeline(made.schedule, costs)


@pytest.mark.parametrize("rank_of", [(0, 1, 2), (0, 1, 0, 1), (0, 1, 1, 0)])
def test_auto_with_forward_only_stages_is_the_best(rank_of: tuple[int, ...]) -> None:
    ranks = max(rank_of) + 1
    costs = uneven(len(rank_of))
    layers = tuple(range(number, number + 1) for number in range(len(rank_of)))
    names = {
        (0, 1, 2): ("gpipe", "1f1b", "fast_forward", "zb_h1", "zb_h2", "modulo", "push"),
        (0, 1, 0, 1): ("gpipe", "interleaved", "modulo", "push"),
        (0, 1, 1, 0): ("zb_v",),
    }[rank_of]
    for first in range(len(rank_of)):
        others = [placed(layers, costs, ranks, 4, name) for name in names]
        named = [
            reschedule(other, name, costs, first) for other, name in zip(others, names, strict=True)
        ]
        best = reschedule(others[0], AUTO, costs, first)
        assert best.schedule.rank_of == rank_of
        assert best.schedule.first_trained == first
        for other in named:
            assert best.timeline.step_seconds <= other.timeline.step_seconds + 1e-9


def test_forward_only_stages_leave_memory_for_others() -> None:
    """All stages on one rank: what stage 0 would keep does not count."""
    plan = placed((range(1), range(1, 2)), equal_stages(2), 1, 4, "gpipe")
    limited = replace(equal_stages(2), memory_limit=4)
    with pytest.raises(UserError, match="memory limit is 4"):
        reschedule(plan, "gpipe", limited)
    for name in ("gpipe", AUTO):
        made = reschedule(plan, name, limited, 1)
        assert max(peak_bytes(made.schedule, made.costs)) <= 4


@pytest.mark.parametrize("name", ["1f1b", AUTO])
def test_a_first_stage_that_there_is_not(name: str) -> None:
    plan = make_plan(COSTS, RANKS, MICROBATCHES, "1f1b")
    for first in (-1, 2):
        with pytest.raises(UserError, match=f"trains is {first}; it must be one of the 2 stages"):
            reschedule(plan, name, plan.costs, first)


def test_a_file_is_of_all_stages(tmp_path: Path) -> None:
    """Those that do not train are left out by us: where the file forgets one, it is an error."""
    made = make_plan(COSTS, RANKS, MICROBATCHES, "zb_v")
    file = tmp_path / "mine.csv"
    file.write_text(to_csv(with_transfers(made.schedule)))
    plan = make_plan(COSTS, RANKS, MICROBATCHES, str(file))
    half = reschedule(plan, str(file), plan.costs, 2)
    assert half.schedule == replace(trained_from(made.schedule, 2), name=str(file))
    with pytest.raises(UserError, match="before stage 2, so stage 1 cannot train"):
        reschedule(half, str(file), plan.costs, 1)
    file.write_text(to_csv(half.schedule))
    with pytest.raises(UserError, match=r"mine\.csv has no I or B of stage 0; it must have"):
        make_plan(COSTS, RANKS, MICROBATCHES, str(file))


@pytest.mark.parametrize(
    ("name", "chunks", "message"),
    [
        ("zb_h3", None, "schedule is zb_h3.*did you mean zb_h"),
        ("1f1b", 2, "chunks is 2, but the schedule 1f1b has 1 stage a rank"),
        ("zb_v", 1, "chunks is 1, but the schedule zb_v has 2 stages a rank"),
    ],
)
def test_names_that_cannot_be(name: str, chunks: int | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_name(name, chunks)
