"""What a checkpoint costs is read off the times of steps."""

from __future__ import annotations

import itertools
from types import ModuleType

import pytest

from tests.expr.scripts import load


@pytest.fixture(scope="module")
def checkpoints() -> ModuleType:
    return load("overhead", "checkpoints")


def ends(steps: list[float]) -> list[float]:
    return list(itertools.accumulate(steps, initial=7.0))


def test_what_a_checkpoint_costs(checkpoints: ModuleType) -> None:
    """A step in which it is copied, and twenty that are slower while a thread writes it."""
    steps = [0.010] * 1000
    for saved in range(99, 1000, 100):
        steps[saved] += 0.030
        for number in range(saved + 1, min(saved + 21, 1000)):
            steps[number] += 0.001
    found = checkpoints.costs(ends(steps), 100)
    assert found == pytest.approx([0.050] * 7)
    assert checkpoints.costs(ends([0.010] * 1000), 100) == pytest.approx([0.0] * 7)


def test_the_first_steps_do_not_count(checkpoints: ModuleType) -> None:
    steps = [3.0, *[0.010] * 999]
    assert checkpoints.costs(ends(steps), 100) == pytest.approx([0.0] * 7)


def test_how_often_a_checkpoint_may_be_written(checkpoints: ModuleType) -> None:
    common = {"model": "MLP", "megabytes": 30.0, "median_ms": 10.0}
    rows = [
        common | {"turn": turn, "way": way, "mean_ms": mean, "costs_ms": costs}
        for turn in (0, 1)
        for way, mean, costs in (("without", 10.0, "0.0 1.0"), ("with", 10.2, "39.0 41.0"))
    ]
    *_, line = checkpoints.table(rows).splitlines()
    assert line == "| MLP | 30.0 MB | 10.0 ms | 40 ms | 0 ms | 200 steps (2.0 s) | 1.020, 1.020 |"
