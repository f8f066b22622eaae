"""Gradients in 16 bits, in the planner: half of the bytes, and the work of rounding them.

In simulation, an exchange of a plan's ``narrow`` weights has two bytes an element. Its CPU time
grows by that of adding what was lost, rounding, keeping what is lost now, and widening the mean: as
long as to copy what is sent NARROWING_COPIES times. A residual of each such weight stays in memory.
"""

from __future__ import annotations

from dataclasses import replace

from ooodist.planner.costs import ITEM_BYTES, Network, StepCosts, WeightCost

# Measured with error feedback, for 2 million float32 on one core: 11.6 to 12.1, and 6.9 to 7.8
# without (float16 and bfloat16; 0.9 ms a MB where a copy takes 0.15).
NARROWING_COPIES = 12
WIRE_BYTES = 2


def is_narrowed(weight: WeightCost) -> bool:
    """Whether a weight's gradient can travel in 16 bits."""
    return weight.dtype in ITEM_BYTES


def narrowed_weight(weight: WeightCost, wire: str) -> WeightCost:
    """The weight with its gradient as it is sent in 16 bits."""
    if not is_narrowed(weight):
        return weight
    num_elements = weight.num_bytes // ITEM_BYTES[weight.dtype]
    return replace(weight, num_bytes=num_elements * WIRE_BYTES, dtype=wire)


def residual_bytes(weight: WeightCost) -> int:
    """The bytes of what is kept of a weight whose gradient travels in 16 bits."""
    return weight.num_bytes if ITEM_BYTES.get(weight.dtype, 0) > WIRE_BYTES else 0


def narrowed(costs: StepCosts, network: Network, wire: str) -> tuple[StepCosts, Network]:
    """Costs in which all that can travels in 16 bits, for plans that narrow nothing.

    So a plan has the step time in these that it has in ``costs`` and ``network`` if it narrows
    everything, and a search that knows of one width finds plans for the other.
    """
    weights = tuple(narrowed_weight(weight, wire) for weight in costs.weights)
    residuals = sum(residual_bytes(weight) for weight in costs.weights)
    rounding = NARROWING_COPIES * network.cpu_seconds_per_copied_byte
    return (
        replace(costs, weights=weights, base_bytes=costs.base_bytes + residuals),
        replace(network, cpu_seconds_per_byte=network.cpu_seconds_per_byte + rounding),
    )


def at_least(costs: StepCosts, network: Network, wire: str) -> tuple[StepCosts, Network]:
    """Costs for a lower bound over all plans, whatever they narrow.

    All travels in 16 bits, and its CPU time is that of the cheaper width.
    """
    narrow, rounding = narrowed(costs, network, wire)
    in_full = network.cpu_seconds_per_byte * min(
        (ITEM_BYTES[weight.dtype] / WIRE_BYTES for weight in costs.weights if is_narrowed(weight)),
        default=1.0,
    )
    return narrow, replace(
        network, cpu_seconds_per_byte=min(rounding.cpu_seconds_per_byte, in_full)
    )
