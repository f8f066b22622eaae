"""Costs of plain chains of layers, for tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from ooodist.planner.costs import StepCosts, UnitCost, WeightCost
from ooodist.planner.data_parallel.plan import PlannedExchange


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


def uneven_costs(layers: int) -> StepCosts:
    """Layers of many sizes, each with a kernel and a bias that one unit completes."""
    rng = random.Random(layers)
    chain = chain_costs([4 * rng.randint(1 << 14, 1 << 21) for _ in range(layers)], update=1e-4)
    bias = {
        weight.name: replace(weight, name=f"b{weight.name}", num_bytes=256)
        for weight in chain.weights
    }

    def with_bias(unit: UnitCost) -> UnitCost:
        names = tuple(bias[name].name for name in unit.weights)
        return replace(unit, seconds=rng.uniform(1e-3, 3e-3), weights=unit.weights + names)

    return replace(
        chain,
        forward=tuple(map(with_bias, chain.forward)),
        backward=tuple(map(with_bias, chain.backward)),
        weights=(*chain.weights, *bias.values()),
    )
