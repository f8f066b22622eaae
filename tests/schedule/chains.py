"""Costs of plain chains of layers, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from ooodist.schedule.costs import StepCosts, UnitCost, WeightCost
from ooodist.schedule.plan import PlannedExchange


def chain_costs(
    num_bytes: Sequence[int],
    *,
    forward: float = 1.0,
    output_gradient: float = 1.0,
    weight_gradient: float = 1.0,
    update: float = 0.0,
) -> StepCosts:
    """Equal layers 1, 2, ... with one weight each: F1 F2 F3 | W3 X3 W2 X2 W1.

    X3 makes the output gradient of layer 2, so that X1 is not needed.
    """
    layers = range(1, len(num_bytes) + 1)
    backward: list[UnitCost] = []
    above: tuple[str, ...] = ()
    for layer in reversed(layers):
        backward.append(UnitCost(f"W{layer}", "dW", weight_gradient, above, (f"w{layer}",)))
        if layer > 1:
            backward.append(UnitCost(f"X{layer}", "dX", output_gradient, above))
            above = (f"X{layer}",)
    return StepCosts(
        tuple(UnitCost(f"F{layer}", "F", forward, weights=(f"w{layer}",)) for layer in layers),
        tuple(backward),
        tuple(
            WeightCost(f"w{layer}", size, update_seconds=update)
            for layer, size in zip(layers, num_bytes, strict=True)
        ),
    )


def each_alone(*names: str) -> tuple[PlannedExchange, ...]:
    return tuple(PlannedExchange((name,)) for name in names)
