"""One worker of the jobs in test_rank_0.py: warm starts, on all ranks together.

Usage: worker.py FOLDER NAME...   (a folder that all ranks see, and names of functions below)
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np

import ooodist

engine = ooodist.init(planned=True)

import keras  # noqa: E402

from ooodist.config.warm_start import WarmStartConfig  # noqa: E402
from ooodist.engines.rank_0 import BEAT_SECONDS, on_rank_0  # noqa: E402
from ooodist.errors import UserError  # noqa: E402
from ooodist.step import replicas  # noqa: E402
from ooodist.transfer import provenance  # noqa: E402
from ooodist.zoo import start as module  # noqa: E402
from ooodist.zoo.service.client import ZooClient  # noqa: E402
from tests.workers import check, run  # noqa: E402
from tests.zoo.starts import (  # noqa: E402
    assert_same,
    batches,
    compiled,
    free_port,
    meta,
    network,
    state,
    trained,
    zoo_of,
)

folder = Path(sys.argv[1])
rank, size = engine.rank, engine.size
RATE = 0.01
opened: list[str] = []  # zoos, by this rank


class Noted(ZooClient):
    """The client, which notes that it was made."""

    def __init__(self, address: str, **arguments: object) -> None:
        opened.append(address)
        super().__init__(address, **arguments)


module.ZooClient = Noted


@check
def what_rank_0_does_may_take_long() -> None:
    engine.barrier()
    began = time.perf_counter()
    found = on_rank_0(engine, lambda: time.sleep(6 * BEAT_SECONDS) or "done")
    seconds = time.perf_counter() - began
    assert found == ("done" if rank == 0 else None)
    assert seconds > 5 * BEAT_SECONDS, seconds
    assert engine.gather(np.array([rank])).ravel().tolist() == list(range(size))


@check
def only_rank_0_does_it() -> None:
    done: list[str] = []
    on_rank_0(engine, lambda: done.append(threading.current_thread().name))
    assert done == (["ooodist rank 0"] if rank == 0 else [])


@check
def several_works_one_after_the_other() -> None:
    found = [on_rank_0(engine, lambda n=n: n**2) for n in range(20)]
    assert found == ([n**2 for n in range(20)] if rank == 0 else [None] * 20)


@check
def all_ranks_learn_of_what_fails() -> None:
    def fails() -> None:
        time.sleep(2 * BEAT_SECONDS)
        raise UserError("no luck")

    for _ in range(2):
        message = ""
        try:
            with engine.agreed():
                on_rank_0(engine, fails)
        except UserError as error:
            message = str(error)
        assert message == "rank 0: no luck", message


def started(zoo: str, **settings: object) -> tuple[keras.Model, provenance.WarmStart | None]:
    """A model, which is not the same on each rank, and what became of it."""
    model = compiled(network(9, 2, dropout=0.2, seed=10 + rank), keras.optimizers.Adam(RATE))
    return model, ooodist.warm_start(model, zoo, **settings)


def zoo_with(name: str, *models: keras.Model) -> str:
    """Made by rank 0."""
    address = str(folder / name)
    if rank == 0:
        metas = [meta(f"{n}", 0.9 - n / 100) for n in range(len(models))]
        zoo_of(Path(address), *models, metas=metas)
    engine.barrier()
    return address


@check
def all_ranks_get_the_weights_of_rank_0() -> None:
    zoo = zoo_with("one", trained(network(seed=1), 3))
    opened.clear()
    model, found = started(zoo, batches=batches(1), lower_rate=0.6)
    assert opened == ([zoo] if rank == 0 else [])
    assert found is not None
    for variable in (*model.weights, *model.optimizer.variables):
        if "seed_generator" not in variable.path:  # ranks draw other numbers
            engine.check_equal(variable.path, variable.numpy().tobytes())
    engine.check_equal("the note", str(provenance.plain_of(model)))
    rate = float(model.optimizer.learning_rate)
    assert abs(rate - RATE * (1 - 0.6 * found.carried)) < 1e-7
    replicas.check_replicas(engine, model)

    # As one process alone makes it, from the same fresh weights.
    alone = compiled(network(9, 2, dropout=0.2, seed=10))
    assert module.start(alone, WarmStartConfig(zoo), None, batches(1)) is not None
    for weight, other in zip(model.weights, alone.weights, strict=True):
        if "seed_generator" not in weight.path:
            np.testing.assert_array_equal(weight, other, err_msg=weight.path)


@check
def the_best_is_probed_on_rank_0() -> None:
    """It is said to be the least accurate one."""
    zoo = zoo_with("three", network(seed=2), network(seed=3), trained(network(seed=4), 40))
    model, found = started(zoo, batches=batches(), probe_steps=4)
    assert found is not None
    assert found.name == "2"
    replicas.check_replicas(engine, model)


@check
def without_a_zoo_every_rank_starts_cold() -> None:
    for zoo in (str(folder / "empty"), f"127.0.0.1:{free_port()}"):
        opened.clear()
        model = compiled(network(seed=20 + rank))
        before = state(model)
        assert ooodist.warm_start(model, zoo, timeout=5.0) is None
        assert len(opened) == (rank == 0)
        assert_same(state(model), before)
        assert provenance.start_of(model) is None


@check
def what_is_required_ends_on_all_ranks_with_one_message() -> None:
    model = compiled(network(seed=20 + rank))
    before = state(model)
    message = ""
    try:
        ooodist.warm_start(model, str(folder / "empty"), required=True)
    except UserError as error:
        message = str(error)
    start = "rank 0: warm_start.required is true, but there is no warm start from "
    assert message.startswith(start), message
    engine.check_equal("the message", message)
    assert_same(state(model), before)


@check
def a_model_that_is_another_one_on_some_rank_is_refused() -> None:
    zoo = zoo_with("other", network(seed=1))
    message = ""
    try:
        ooodist.warm_start(network(6 + rank, seed=1), zoo)
    except UserError as error:
        message = str(error)
    assert "the model differs between ranks: its variable number" in message


@check
def training_goes_on_from_there() -> None:
    zoo = zoo_with("trained", trained(network(seed=5), 5))
    model, found = started(zoo, batches=batches(1))
    assert found is not None
    ooodist.distribute(model)
    x, y = (np.concatenate(each) for each in zip(*batches(4), strict=True))
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    replicas.check_replicas(engine, model)
    assert int(model.optimizer.iterations) == 2 * len(x) // (8 * size)


@check
def all_ranks_ask_the_zoo_of_a_program() -> None:
    zoo = ooodist.Zoo(folder / "program")
    opened.clear()
    model = ooodist.distribute(compiled(network(seed=6)))
    added = zoo.register(model, {"accuracy": 0.5 + rank / 10}, task="t")
    found = zoo.query(model, task="t")
    assert opened == ([str(folder / "program")] if rank == 0 else [])  # it stays open
    engine.check_equal("what was found", str((added, found)))
    assert [(each.id, each.meta.metrics) for each in found] == [(added, {"accuracy": 0.5})]
    message = ""
    try:
        zoo.query(model, count=0)
    except UserError as error:
        message = str(error)
    assert message == "rank 0: count is 0; it must be at least 1", message


if __name__ == "__main__":
    run(engine, sys.argv[2:])
