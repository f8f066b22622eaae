"""Which metric decides for a model, and that it does so in its own direction."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.zoo.entry import Meta
from ooodist.zoo.metrics import KNOWN, OF_TASK, Quality, check, judge_of, kind_of, metric_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("accuracy", "accuracy"),
        ("sparse_top_k_categorical_accuracy", "accuracy"),
        ("f1_score", "f1_score"),
        ("head_loss", "loss"),
        ("root_mean_squared_error", "error"),
        ("inaccuracy", None),
        ("losses", None),
        ("accuracy_", None),
        ("", None),
    ],
)
def test_a_metric_is_known_by_its_name_or_the_end_of_it(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("accuracy", 98.0, r"0 to 1 \(divide percents by 100\)"),
        ("val_auc", -0.1, "0 to 1"),
        ("perplexity", 0.99, "at least 1"),
        ("rmse", -1e-9, "at least 0"),
        ("rmse", math.inf, "at least 0"),
        ("loss", math.nan, "a finite number"),
        ("anything", -math.inf, "a finite number"),
    ],
)
def test_a_value_that_a_metric_cannot_have_is_refused(
    name: str, value: float, allowed: str
) -> None:
    with pytest.raises(UserError, match=f"{name} is {value}; it must be {allowed}"):
        check(name, value)


def test_values_at_the_bounds_are_possible() -> None:
    possible = [("accuracy", 0.0), ("accuracy", 1.0), ("perplexity", 1.0), ("mae", 0.0)]
    for name, value in [*possible, ("loss", -1e300), ("r2_score", -7.0), ("anything", 1e300)]:
        check(name, value)


@pytest.mark.parametrize(
    ("meta", "judge"),
    [
        (Meta(), None),
        (Meta(metrics={"hinge": 1.0}), None),
        (Meta(metrics={"hinge": 1.0, "loss": 1.0}), "loss"),
        (Meta(metrics={"loss": 1.0, "accuracy": 0.5}), "accuracy"),
        (Meta(metrics={"top_5_accuracy": 0.9, "accuracy": 0.5}), "accuracy"),
        (Meta(metrics={"loss": 1.0, "top_5_accuracy": 0.9}), "top_5_accuracy"),
        (Meta(task="language", metrics={"accuracy": 0.5, "perplexity": 9.0}), "perplexity"),
        (Meta(task="language", metrics={"accuracy": 0.5, "loss": 2.0}), "accuracy"),
        (Meta(task="regression", metrics={"loss": 4.0, "mae": 1.5, "rmse": 2.0}), "rmse"),
        (Meta(task="pretraining", metrics={"loss": 4.0, "token_accuracy": 0.5}), "loss"),
        (Meta(task="my own", metrics={"rmse": 4.0, "f1": 0.5}), "f1"),
        (Meta(task="language", metrics={"f1": 0.5, "perplexity": 9.0}, judged_by="f1"), "f1"),
    ],
)
def test_the_metric_of_the_task_decides(meta: Meta, judge: str | None) -> None:
    for order in itertools.permutations(meta.metrics.items()):
        again = Meta(task=meta.task, metrics=dict(order), judged_by=meta.judged_by)
        assert judge_of(again) == judge


def test_the_metrics_of_the_tasks_are_known() -> None:
    assert all(kind_of(name) == name for name in OF_TASK.values())


VALUES = {  # that each kind can have
    kind: st.floats(
        -1e9 if metric.bounds is None else metric.bounds.least,
        1e9 if metric.bounds is None or metric.bounds.most is None else metric.bounds.most,
    )
    for kind, metric in KNOWN.items()
}


@given(st.data(), st.sampled_from([*KNOWN]))
def test_the_better_value_has_the_higher_quality(data: st.DataObject, name: str) -> None:
    values = data.draw(st.lists(VALUES[name], min_size=1, max_size=8))
    others = [Meta(task="other", metrics={"loss": 1.0}), Meta(metrics={"hinge": 0.0})]
    metas = [Meta(task="t", dataset="d", metrics={name: value}) for value in values]
    quality = Quality([*metas, *others])
    assert [quality.of(meta) for meta in others] == [0.5, None]
    found = [quality.of(meta) for meta in metas]
    for (one, good), (other, better) in itertools.product(
        zip(values, found, strict=True), repeat=2
    ):
        assert good is not None
        assert better is not None
        assert 0 <= good <= 1
        sign = 1 if metric_of(name).rises else -1
        assert (sign * one < sign * other) == (good < better)


def test_a_metric_from_0_to_1_is_the_quality_itself() -> None:
    metas = [Meta(metrics={"accuracy": each}) for each in (0.9, 0.95)]
    assert [*map(Quality(metas).of, metas)] == [0.9, 0.95]


def test_losses_of_other_data_are_not_compared() -> None:
    """Each is the best of its data set, whatever its scale."""
    metas = [
        Meta(task="regression", dataset=dataset, metrics={"rmse": scale * value})
        for dataset, scale in (("houses", 1e5), ("ages", 1.0))
        for value in (1.0, 2.0)
    ]
    assert [*map(Quality(metas).of, metas)] == [0.75, 0.25, 0.75, 0.25]
