"""The digest changes with the model, and with nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ooodist.graph.digest import HEX_DIGITS, model_digest
from ooodist.graph.units import Unit


def units() -> list[Unit]:
    return [
        Unit("dX:loss", "dX", (), 0, (), frozenset(), 1),
        Unit("dW:b", "dW", ("b/kernel", "b/bias"), 44, (), frozenset({"dX:loss"}), 1),
        Unit("dX:a", "dX", (), 0, (), frozenset({"dX:loss"}), 2),
        Unit("dW:a", "dW", ("a/kernel",), 16, (), frozenset({"dX:a", "dX:loss"}), 2),
    ]


def test_the_same_everywhere() -> None:
    # Written down, so that a plan of another process and day is still known.
    assert model_digest(units()) == "c2a0affc93884460"
    assert len(model_digest([])) == HEX_DIGITS


@pytest.mark.parametrize(
    "change",
    [
        {"name": "dW:c"},
        {"kind": "dX"},
        {"variables": ("b/kernel",)},
        {"gradient_bytes": 48},
        {"needs": frozenset()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_differs(change: dict[str, Any]) -> None:
    first, second, *others = units()
    assert model_digest([first, replace(second, **change), *others]) != model_digest(units())


def test_order_counts() -> None:
    first, second, third, fourth = units()
    assert model_digest([first, third, second, fourth]) != model_digest(units())
