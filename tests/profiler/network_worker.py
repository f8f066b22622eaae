"""One worker of the job in test_network.py: measures the network and a model's profile.

Usage: network_worker.py FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import ooodist
from ooodist import engines

engine = engines.init(planned=True)

from ooodist.planner.costs import Network  # noqa: E402
from ooodist.profiler import exchange_timing, storage  # noqa: E402
from ooodist.profiler import network as measuring  # noqa: E402
from ooodist.profiler.storage import profile_of  # noqa: E402
from ooodist.settings.sections import PlanningConfig  # noqa: E402
from ooodist.util.yaml_dataclass import dump  # noqa: E402
from tests.profiler.models import batch, dense_chain  # noqa: E402

# This is about the path, not about good numbers.
measuring.REPEATS = 2
measuring.RUN_SECONDS = measuring.COMPUTE_SECONDS = measuring.BESIDE_SECONDS = 0.02
exchange_timing.MOST_TRACED = measuring.MOST_TRACED = 2  # so that there are several functions


def check_beside_a_step() -> Network:
    """One that only sleeps, so that it waits for no core and is hardly any longer for exchanges."""
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.02)

    network = measuring.measure_network(engine, step, for_plans=False)
    check_costs(network)
    assert calls >= 2 * measuring.REPEATS
    # An exchange takes its time on the cores: a worker's own, or what all workers here share.
    own = os.sched_getaffinity(0)
    sharing = engine.size if own == os.sched_getaffinity(1) else 1
    assert measuring._cores(engine) == (len(own), sharing)
    assert network.cpu_seconds_per_byte + network.cpu_seconds_per_exchange > 0
    engine.check_equal("the calls", str(calls))
    return network


def check_costs(network: Network) -> None:
    assert (network.engine, network.workers) == (engine.name, engine.size)
    assert network.by_urgency == (engine.name == "byteps")
    # More than 10 KB/s, less than 100 GB/s; no round takes a second.
    assert 1e-11 < network.seconds_per_byte + network.pull_seconds_per_byte < 1e-4, network
    assert 0 <= network.latency + network.fixed < 1, network
    assert 0 <= network.cpu_seconds_per_byte < 1e-4, network
    assert 0 <= network.cpu_seconds_per_exchange < 1, network
    engine.check_equal("the network", str(network))


def check_verification(network: Network) -> None:
    nothing = Network(network.engine, network.workers, by_urgency=network.by_urgency)
    assert not measuring.still_holds(engine, nothing)
    measuring.CHECK_TOLERANCE = 1e9
    assert measuring.still_holds(engine, network)
    measuring.CHECK_TOLERANCE = 0.25


def check_profile(folder: Path) -> None:
    # Only rank 0 reads and writes.
    own = folder if engine.rank == 0 else folder / "none"
    model = dense_chain()
    first = profile_of(model, batch(engine.rank), engine, PlanningConfig(profiles=str(own)))
    engine.check_equal("the profile", dump(first))
    assert first.conditions.workers == engine.size
    seconds = np.array(first.costs.compute_seconds)
    assert engine.all_reduce(seconds, "max") == seconds > 0
    engine.barrier()
    assert len(list(folder.iterdir())) == 1
    storage.still_holds = lambda *_: True
    assert profile_of(model, batch(), engine, PlanningConfig(profiles=str(own))) == first
    storage.still_holds = lambda *_: False
    again = profile_of(model, batch(), engine, PlanningConfig(profiles=str(own)))
    engine.check_equal("the profile", dump(again))
    assert again.costs == first.costs
    assert not (folder / "none").exists()


def main() -> None:
    check_verification(check_beside_a_step())
    if engine.name == "collective":  # tests/test_examples.py profiles with each engine
        check_profile(Path(sys.argv[1]))
    print(f"rank {engine.rank} measured", flush=True)
    ooodist.shutdown()


main()
