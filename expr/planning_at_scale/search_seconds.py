"""How long planning takes, by the number of layers: seconds of one core, and what the plan gains.

    python expr/planning_at_scale/search_seconds.py
    python expr/planning_at_scale/search_seconds.py --one-plan  # only what simulating a plan takes

The models are made up: as many layers as asked for, each with a kernel and a bias of random size,
whose exchange by a ring takes about as long as the computation. The limits are those of
``python -m ooodist.plan``. No accelerator or TensorFlow is used.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from dataclasses import replace

from ooodist.engines.kinds import find
from ooodist.planner.cluster import describe_network
from ooodist.planner.costs import Network, StepCosts, UnitCost, WeightCost
from ooodist.planner.data_parallel.named import first_k_plan
from ooodist.planner.data_parallel.search import Limits, make_plan
from ooodist.planner.data_parallel.simulate import Simulator

LAYERS = (50, 150, 300, 600, 1000)
ENGINES = ("horovod", "byteps", "collective")
WORKERS, BITS_PER_SECOND, LATENCY = 16, 10e9, 30e-6
UNIT_SECONDS = 1.5e-3  # on average: F, dX and dW of a layer take 4.5 ms, as its exchange does
KERNEL_BYTES = 1 << 16, 1 << 24  # log-uniform


def made_up(layers: int, seed: int = 0) -> StepCosts:
    """Costs of a chain of layers F, dX, dW with a kernel and a bias each."""
    rng = random.Random(seed)
    forward: list[UnitCost] = []
    backward: list[UnitCost] = []
    weights: list[WeightCost] = []
    for layer in range(layers):
        seconds = UNIT_SECONDS * rng.uniform(0.2, 1.8)
        kernel = 4 * int(math.exp(rng.uniform(*map(math.log, KERNEL_BYTES))) // 4)
        names = f"layer{layer}/kernel", f"layer{layer}/bias"
        for name, num_bytes in zip(names, (kernel, 4 * rng.randint(16, 4096)), strict=True):
            weights.append(WeightCost(name, num_bytes, update_seconds=2e-6 + num_bytes / 300e9))
        needs = (f"dX:{layer + 1}",) if layer + 1 < layers else ()
        forward.append(UnitCost(f"F:{layer}", "F", seconds, weights=names))
        backward.append(UnitCost(f"dX:{layer}", "dX", seconds, needs))
        backward.append(UnitCost(f"dW:{layer}", "dW", seconds, needs, weights=names))
    pairs = [backward[2 * layer : 2 * layer + 2] for layer in reversed(range(layers))]
    baseline = tuple(unit for pair in pairs for unit in pair)
    return StepCosts(tuple(forward), baseline, tuple(weights), launch_seconds=5e-3)


def plan_seconds(costs: StepCosts, network: Network) -> float:
    """Median of simulating a plan: half of the layers deferred, four steps per execution."""
    plan = first_k_plan(costs, network, len(costs.forward) // 2, steps_per_execution=4)
    simulator = Simulator(costs, network)
    simulator.step_seconds(plan)
    times = []
    for _ in range(9):
        start = time.process_time()
        simulator.step_seconds(plan)
        times.append(time.process_time() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", type=int, default=LAYERS)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument(
        "--one-plan", action="store_true", help="only the seconds of simulating a single plan"
    )
    options = parser.parse_args()
    columns = ["layers", "engine", "one plan"]
    if not options.one_plan:
        columns += ["search", "baseline", "planned", "over the baseline"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for layers in options.layers:
        costs = made_up(layers)
        for engine in options.engines:
            network = describe_network(engine, WORKERS, BITS_PER_SECOND, LATENCY)
            row = [f"{layers:,}", engine, f"{plan_seconds(costs, network) * 1e3:.2f} ms"]
            if not options.one_plan:
                row += searched(costs, network)
            print(f"| {' | '.join(row)} |", flush=True)


def searched(costs: StepCosts, network: Network) -> list[str]:
    """Seconds of the search; of a step with the baseline and with what was found."""
    limits = replace(Limits(), credits=find(network.engine).credits)
    start = time.process_time()
    found = make_plan(costs, network, limits=limits).predicted
    seconds = time.process_time() - start
    assert found is not None
    return [
        f"{seconds:.1f} s",
        f"{found.baseline_seconds * 1e3:.1f} ms",
        f"{found.step_seconds * 1e3:.1f} ms",
        f"{found.baseline_seconds / found.step_seconds:.3f}x",
    ]


if __name__ == "__main__":
    main()
