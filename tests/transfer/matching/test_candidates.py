"""Candidates: the best by the definition, bounds that hold, and few models matched in full."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from ooodist.transfer.matching.candidates import bucket_of, candidates, upper_bound
from ooodist.transfer.matching.match import Prepared, prepare, scores
from tests.processor_time import fastest
from tests.transfer.exhaustive import inception_net, plain_net, residual_net, zoo_of


@pytest.fixture
def matched(monkeypatch: pytest.MonkeyPatch) -> list[Prepared]:
    """The models that were matched in full so far."""
    matched: list[Prepared] = []

    def counted(child: Prepared, parents: Sequence[Prepared]) -> np.ndarray:
        matched.extend(parents)
        return scores(child, parents)

    monkeypatch.setattr("ooodist.transfer.matching.candidates.scores", counted)
    return matched


def test_scores_within_bounds() -> None:
    zoo = [prepare(outline) for outline in zoo_of(100)]
    for child in zoo[:10]:
        found, bounds = scores(child, zoo), upper_bound(child, zoo)
        assert (found <= bounds + 1e-9).all()
        assert (bounds <= 1 + 1e-9).all()
        assert bounds.mean() < 0.8  # they tell something


def highest_buckets(values: Sequence[float], buckets: int, count: int) -> list[tuple[int, float]]:
    """By the definition: bucket by bucket, until there are enough."""
    found: list[tuple[int, float]] = []
    for bucket in reversed(range(buckets)):
        if len(found) < count:
            found += [
                (number, value)
                for number, value in enumerate(values)
                if min(buckets - 1, math.floor(value * buckets + 1e-9)) == bucket
            ]
    return sorted(found, key=lambda each: (-each[1], each[0]))


@pytest.fixture(scope="module")
def scored() -> tuple[list[Prepared], np.ndarray]:
    """A zoo, some of whose models are there twice, and the scores of the first six in it."""
    zoo = [prepare(outline) for outline in zoo_of(80)]
    zoo += zoo[10:30]
    return zoo, np.array([scores(child, zoo) for child in zoo[:6]])


@pytest.mark.parametrize("buckets", [1, 4, 10, 100])
@pytest.mark.parametrize("count", [1, 3, 25, 1000])
def test_candidates_are_the_highest_buckets(
    buckets: int, count: int, scored: tuple[list[Prepared], np.ndarray]
) -> None:
    zoo, of_children = scored
    for child, values in zip(zoo, of_children, strict=False):
        expected = highest_buckets(values.tolist(), buckets, count)
        assert candidates(child, zoo, buckets=buckets, count=count) == expected


def test_buckets_are_equal_parts_and_the_last_has_the_1() -> None:
    assert [bucket_of(score, 10) for score in (0.0, 0.099, 0.1, 0.95, 1.0)] == [0, 0, 1, 9, 9]
    assert bucket_of(0.3 - 1e-12, 10) == 3  # as the sum of three tenths may be
    assert bucket_of(0.7, 1) == 0


def test_candidates_of_an_empty_zoo() -> None:
    assert candidates(prepare(plain_net([8])), []) == []


def test_equal_models_are_matched_once(matched: list[Prepared]) -> None:
    same, other = (residual_net([width] * 3) for width in (16, 64))
    zoo = [prepare(outline) for outline in (same, other, same, same)]
    assert candidates(prepare(same), zoo) == [(0, 1.0), (2, 1.0), (3, 1.0)]
    assert len(matched) <= 2
    assert zoo[0].digest == zoo[2].digest != zoo[1].digest


def test_few_models_are_matched_in_full(matched: list[Prepared]) -> None:
    zoo = [prepare(outline) for outline in zoo_of(300)]
    shares = []
    for child in zoo[:20]:
        matched.clear()
        candidates(child, zoo)
        shares.append(len(matched) / len(zoo))
    print(f"models matched in full: {np.mean(shares):.1%} in mean, {max(shares):.1%} at most")
    assert np.mean(shares) < 0.3


def test_a_zoo_of_1000_models_is_searched_fast() -> None:
    """0.1 s on a free machine."""
    zoo = [prepare(outline) for outline in zoo_of(1000)]
    for child in map(prepare, (residual_net([20] * 8 + [40] * 8), inception_net([10] * 4))):
        seconds = fastest(lambda child=child: candidates(child, zoo), runs=3)  # type: ignore[misc]
        print(f"{len(child.outline)} operators against 1,000 models: {seconds:.3f} s")
        assert seconds < 2
