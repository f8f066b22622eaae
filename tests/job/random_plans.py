"""Legal plans at random, for a step that was traced."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from ooodist.engines.base import Engine
from ooodist.graph.digest import model_digest
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange
from ooodist.step.backward import TracedStep
from tests.graph.test_order import random_order


def random_plan(
    step: TracedStep, num_elements: Mapping[str, int], engine: Engine, seed: int
) -> Plan:
    """Any legal order of the units; gradients in any order, some in buckets, some in chunks.

    None of the exchanges are carried, or some, or all.

    Args:
        num_elements: of each weight that is exchanged (float32).
    """
    chooser = random.Random(seed)
    exchanges = tuple(_exchanges(num_elements, chooser))
    by_urgency = engine.name == "byteps" and chooser.random() < 0.7
    plan = Plan(
        name="random",
        order=None if chooser.random() < 0.2 else tuple(random_order(seed)(step.backward)),
        exchanges=exchanges,
        credit=chooser.choice([1, 2, 3, None]),
        by_urgency=by_urgency,
        steps_per_execution=chooser.choice([1, 2, 3]),
        model=model_digest(step.backward),
        engine=engine.name,
        workers=engine.size,
    )
    share = chooser.choice([0, 0, 0.5, 1])
    carried = [replace(each, carried=chooser.random() < share) for each in exchanges]
    return replace(plan, exchanges=tuple(carried))


def _exchanges(num_elements: Mapping[str, int], chooser: random.Random) -> list[PlannedExchange]:
    weights = list(num_elements)
    chooser.shuffle(weights)
    exchanges = []
    while weights:
        if chooser.random() < 0.5:
            count = chooser.randint(1, 3)
            exchanges.append(PlannedExchange(tuple(weights[:count])))
            weights = weights[count:]
        else:
            weight = weights.pop()
            parts = chooser.randint(1, max(1, min(4, num_elements[weight] // 16)))
            exchanges += [PlannedExchange((weight,), part, parts) for part in range(parts)]
    chooser.shuffle(exchanges)
    return exchanges
