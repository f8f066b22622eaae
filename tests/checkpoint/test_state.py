"""Whether a job's variables are those of a checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.checkpoint.state import Variable, check_fits
from ooodist.errors import UserError

SAVED = (
    Variable("dense/kernel", (4, 8), "float32", ("layers/dense/vars/0",)),
    Variable("dense/bias", (8,), "float32", ("layers/dense/vars/1",)),
    Variable("dense_1/kernel", (8, 8), "float32", ("layers/dense_1/vars/0",)),
    Variable("adam/iteration", (), "int64", ("optimizer/vars/0",)),
)


def renamed(index: int, **changes: object) -> tuple[Variable, ...]:
    return tuple(replace(v, **changes) if i == index else v for i, v in enumerate(SAVED))  # type: ignore[arg-type]


def test_those_that_fit() -> None:
    check_fits(SAVED, SAVED, "a.keras", by_name=True)
    check_fits(renamed(2, places=()), SAVED, "a.keras", by_name=True)  # places are the file's
    check_fits(renamed(2, path="dense_7/kernel"), SAVED, "a.keras")
    # Keras has made another optimizer in this process before.
    check_fits(renamed(3, path="adam_2/iteration"), SAVED, "a.keras", by_name=True)


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        (
            renamed(0, shape=(4, 9)),
            r"it has dense/kernel of shape \(4, 8\), float32 where this job has .*\(4, 9\)",
        ),
        (
            renamed(1, dtype="float16"),
            r"it has dense/bias of shape \(8,\), float32 where .*float16",
        ),
        (
            renamed(2, path="dense_7/kernel"),
            r"it has dense_1/kernel of shape \(8, 8\), float32 where this job has dense_7/kernel",
        ),
        (renamed(3, path="adam/steps"), r"it has adam/iteration of .* this job has adam/steps of"),
        (SAVED[:-1], r"only the checkpoint has adam/iteration of shape \(\), int64"),
        (
            (*SAVED, Variable("adam/x", (1,), "float32")),
            r"only this job has adam/x of shape \(1,\), float32",
        ),
    ],
)
def test_the_first_that_differs_is_named(mine: tuple[Variable, ...], message: str) -> None:
    pattern = rf"checkpoint a\.keras is of another model or optimizer: {message}.*; give model and"
    with pytest.raises(UserError, match=pattern):
        check_fits(mine, SAVED, "a.keras", by_name=True)


@given(st.permutations(range(len(SAVED))))
def test_any_other_order_is_refused(order: list[int]) -> None:
    mine = [SAVED[index] for index in order]
    if mine == list(SAVED):
        check_fits(mine, SAVED, "a.keras", by_name=True)
    else:
        with pytest.raises(UserError, match=f"it has {SAVED[first_moved(order)].path} "):
            check_fits(mine, SAVED, "a.keras", by_name=True)


def first_moved(order: list[int]) -> int:
    return next(place for place, index in enumerate(order) if place != index)
