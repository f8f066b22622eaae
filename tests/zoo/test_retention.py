"""What a zoo keeps: the most valuable set there is; and what it does not take."""

from __future__ import annotations

import itertools
import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.zoo.entry import Meta
from ooodist.zoo.index import Row
from ooodist.zoo.metrics import Quality
from ooodist.zoo.retention import HALF_LIFE, check_metric, decayed, keep, leaving, used, value

DAY = 24 * 3600.0


def best_of_all_subsets(sizes: list[int], values: list[float], capacity: int) -> float:
    best = 0.0
    for subset in itertools.product([0, 1], repeat=len(sizes)):
        if np.dot(subset, sizes) <= capacity:
            best = max(best, float(np.dot(subset, values)))
    return best


def row(name: str, size: int, accuracy: float | None = 0.5, uses: float = 1.0) -> Row:
    return Row(name, work(accuracy, "", ""), size, 0, 0.0, 0, uses, 0.0)


def worth(row: Row, now: float) -> float:
    return row.worth(now, Quality([row.meta]).of(row.meta))


# Value


@given(st.lists(st.floats(0, 10 * HALF_LIFE), max_size=8), st.floats(0, 10 * HALF_LIFE))
def test_the_running_sum_is_the_sum_over_all_uses(times: list[float], later: float) -> None:
    uses, last = 1.0, 0.0  # being added
    for now in sorted(times):
        uses, last = used(uses, last, now), now
    now = last + later
    expected = sum(2 ** (-(now - each) / HALF_LIFE) for each in [0.0, *times])
    assert decayed(uses, last, now) == pytest.approx(expected)


def test_a_use_counts_half_after_a_half_life() -> None:
    assert decayed(3.0, 0.0, HALF_LIFE) == 1.5
    assert decayed(3.0, 100.0, 50.0) == 3.0  # a clock that goes wrong makes nothing grow


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 100), st.floats(0.01, 100))
def test_value_rises_with_accuracy_and_with_use(a: float, b: float, c: float, d: float) -> None:
    (low, high), (few, many) = sorted((a, b)), sorted((c, d))
    assert value(low, few) <= value(high, few) <= value(high, many)
    assert value(low, few) > 0
    assert value(None, few) == value(0.5, few)


def test_use_brings_a_less_accurate_model_above_one_that_is_forgotten() -> None:
    forgotten = row("forgotten", 1, 0.9, uses=1.0)
    used_much = row("used", 1, 0.7, uses=5.0)
    assert worth(used_much, 30 * DAY) > worth(forgotten, 30 * DAY)
    assert worth(forgotten, 0) > worth(forgotten, 30 * DAY) > worth(forgotten, 60 * DAY) > 0


# Knapsack

instances = st.lists(
    st.tuples(st.integers(0, 50), st.floats(0, 10, allow_subnormal=False)), min_size=1, max_size=9
)


@given(instances, st.integers(1, 150))
def test_what_is_kept_is_the_best_of_all_subsets(
    models: list[tuple[int, float]], capacity: int
) -> None:
    sizes, values = [size for size, _ in models], [worth for _, worth in models]
    kept = keep(sizes, values, capacity)
    assert np.dot(kept, sizes) <= capacity
    best = best_of_all_subsets(sizes, values, capacity)
    assert np.dot(kept, values) == pytest.approx(best, rel=1e-6, abs=1e-6)


def test_a_capacity_of_terabytes_is_kept_to_the_byte() -> None:
    """The solver takes what is too large by a millionth for what fits; here that is 1 MB."""
    capacity = 10**12
    half = capacity // 2
    kept = keep([half, half + 1, half - 1], [1.0, 1.1, 1.0], capacity)
    assert kept.tolist() == [False, True, True]
    kept = keep([half, half + 1], [1.0, 1.1], capacity)
    assert kept.tolist() == [False, True]


def test_nothing_that_is_larger_than_the_capacity_is_kept() -> None:
    assert keep([11, 12], [1.0, 2.0], 10).tolist() == [False, False]
    assert keep([], [], 10).tolist() == []
    assert keep([11, 3], [100.0, 0.1], 10).tolist() == [False, True]


def test_values_that_are_tiny_are_told_apart() -> None:
    """As they are after years without a use."""
    assert keep([6, 6], [1e-12, 2e-12], 10).tolist() == [False, True]
    assert keep([6, 6], [0.0, 1e-300], 10).tolist() == [False, True]


@pytest.mark.parametrize("kind", ["any", "equal values", "values like sizes", "few sizes"])
def test_five_thousand_models_are_chosen_from_in_a_second(kind: str) -> None:
    generator = random.Random(0)
    sizes = [generator.randrange(10**6, 10**9) for _ in range(5000)]
    if kind == "few sizes":
        sizes = [sizes[each % 20] for each in range(5000)]
    values = [generator.random() * generator.choice([1, 1, 10]) for _ in range(5000)]
    if kind == "equal values":
        values = [1.0] * 5000
    elif kind == "values like sizes":
        values = [size * 1e-8 for size in sizes]
    capacity = sum(sizes) // 2
    start = time.process_time()
    kept = keep(sizes, values, capacity)
    assert time.process_time() - start < 3
    assert np.dot(kept, sizes) <= capacity
    # No better than what fits if the last may be cut; no worse than one by one.
    order = sorted(range(5000), key=lambda each: -values[each] / sizes[each])
    room, greedy, bound = capacity, 0.0, None
    for each in order:
        if sizes[each] <= room:
            room -= sizes[each]
            greedy += values[each]
        elif bound is None:
            bound = greedy + values[each] * room / sizes[each]
    assert bound is not None
    assert greedy - 1e-6 <= np.dot(kept, values) <= bound + 1e-6


# Who leaves


def test_nobody_leaves_while_there_is_room() -> None:
    assert leaving([row("a", 5), row("b", 4)], row("new", 1), 10, 0.0) == []


def test_the_least_valuable_leave() -> None:
    rows = [row("used", 4, uses=9.0), row("bad", 4, 0.1), row("good", 4, 0.9)]
    assert leaving(rows, row("new", 4), 12, 0.0) == ["bad"]
    assert leaving(rows, row("new", 2, 0.9), 6, 0.0) == ["bad", "good"]


def test_two_small_ones_may_be_worth_more_than_a_large_one() -> None:
    rows = [row("large", 10, 0.9), row("small", 5, 0.5)]
    assert leaving(rows, row("new", 5, 0.5), 10, 0.0) == ["large"]


def test_a_new_model_that_is_worth_less_than_what_it_would_drive_out_is_refused() -> None:
    rows = [row("a", 5, 0.9, uses=5), row("b", 5, 0.9, uses=5)]
    with pytest.raises(UserError, match=r"model new has 5 bytes .* of 10 bytes .* raise the"):
        leaving(rows, row("new", 5), 10, 0.0)
    with pytest.raises(UserError, match="model new has 11 bytes"):
        leaving([], row("new", 11), 10, 0.0)


@given(st.lists(st.integers(1, 20), max_size=7), st.integers(1, 20), st.integers(1, 60))
def test_what_stays_fits(sizes: list[int], new: int, capacity: int) -> None:
    rows = [row(f"m{number}", size, number / 10) for number, size in enumerate(sizes)]
    try:
        gone = leaving(rows, row("new", new, 1.0), capacity, 0.0)
    except UserError:
        return
    assert new + sum(each.bytes for each in rows if each.id not in gone) <= capacity


# The guard


def work(accuracy: float | None, task: str = "t", dataset: str = "d") -> Meta:
    metrics = {} if accuracy is None else {"accuracy": accuracy}
    return Meta(task=task, dataset=dataset, metrics=metrics)


FIVE = [work(accuracy) for accuracy in (0.90, 0.91, 0.92, 0.93, 0.94)]


def test_an_accuracy_far_below_the_others_is_refused() -> None:
    check_metric(work(0.865), FIVE)
    with pytest.raises(UserError) as raised:
        check_metric(work(0.5), FIVE)
    message = str(raised.value)
    assert "accuracy is 0.5, far below the 5 models of task t and data set d" in message
    assert "median 0.92, 21.0 deviations of 0.02" in message
    assert "must be at least 0.86" in message


def test_a_better_one_is_always_taken() -> None:
    check_metric(work(1.0), [work(0.1)] * 10)


def test_the_limit_is_where_the_message_says() -> None:
    limit = 0.92 - 3 * 0.02
    check_metric(work(limit + 1e-6), [work(0.92)] * 5)  # equal ones: the least deviation
    with pytest.raises(UserError, match=r"at least 0\.86"):
        check_metric(work(limit - 1e-6), [work(0.92)] * 5)


def test_one_that_failed_does_not_move_the_limit() -> None:
    """As it would with mean and standard deviation."""
    with pytest.raises(UserError, match="far below the 6 models"):
        check_metric(work(0.5), [*FIVE, work(0.0)])


@pytest.mark.parametrize(
    "others",
    [
        FIVE[:4],
        [work(0.9, task="other") for _ in range(9)],
        [work(0.9, dataset="other") for _ in range(9)],
        [work(None) for _ in range(9)],
        [*FIVE[:4], work(0.9, task="other"), work(0.9, dataset="other"), work(None)],
    ],
)
def test_four_of_the_same_work_say_nothing(others: list[Meta]) -> None:
    check_metric(work(0.01), others)


@pytest.mark.parametrize(("task", "dataset"), [("", ""), ("t", ""), ("", "d")])
def test_without_task_and_data_set_nobody_knows_what_to_compare_with(
    task: str, dataset: str
) -> None:
    check_metric(work(0.01, task, dataset), [work(0.9, task, dataset)] * 9)


def test_no_accuracy_is_taken() -> None:
    check_metric(work(None), FIVE)


@given(st.lists(st.floats(0, 1), min_size=5, max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_who_is_better_than_one_that_is_taken_is_taken(
    others: list[float], a: float, b: float
) -> None:
    low, high = sorted((a, b))
    metas = [work(each) for each in others]
    try:
        check_metric(work(low), metas)
    except UserError:
        assert low < np.median(others)
        return
    check_metric(work(high), metas)


def losses(*values: float) -> list[Meta]:
    return [Meta(task="regression", dataset="d", metrics={"rmse": each}) for each in values]


def test_a_loss_far_above_the_others_is_refused() -> None:
    others = losses(100.0, 102.0, 98.0, 101.0, 99.0)
    (one, other) = losses(104.0, 110.0)
    check_metric(one, others)
    with pytest.raises(UserError, match=r"rmse is 110, far above .* \(median 100, .*at most 106"):
        check_metric(other, others)
    check_metric(losses(1.0)[0], others)


def test_losses_that_are_all_0_are_compared() -> None:
    check_metric(losses(0.05)[0], losses(*[0.0] * 5))
    with pytest.raises(UserError, match=r"rmse is 0\.07, far above"):
        check_metric(losses(0.07)[0], losses(*[0.0] * 5))
