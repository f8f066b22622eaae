"""Four ranks, 2 x 2, that make logs together: ``mpirun -np 4 python record_worker.py CHECK...``.

Nothing is trained: losses, metrics and codes are made up, and differ from rank to rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import keras
import numpy as np
import pytest

from ooodist.engines.mpi import MpiEngine
from ooodist.errors import UserError
from ooodist.pipeline.ranks import Ranks, make_ranks
from ooodist.pipeline.runtime.record import Record
from ooodist.pipeline.runtime.transport import Transport
from ooodist.step.finiteness.finite import GradientWatch
from ooodist.util.patience import Patience

POSITIONS, REPLICAS, STEPS = 2, 2, 3
SAMPLES = 4  # of a step of one pipeline
PATIENCE, LIMIT = 30.0, 0.5  # seconds that a rank waits for what comes, and for what does not

ENGINE = MpiEngine()
Make = Callable[[int, float], Record]  # of the position that is last, and a timeout


def compiled() -> keras.Model:
    """A model whose metrics are built, and have seen nothing."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="dense")])
    model.compile("sgd", "mse", metrics=["mae"])
    model.test_on_batch(np.zeros((SAMPLES, 1)), np.zeros((SAMPLES, 1)))
    model.reset_metrics()
    return model


def part_of_loss(replica: int, position: int, step: int) -> float:
    return 1.0 + position + 10 * replica + 100 * step


def error_of(replica: int, step: int) -> float:
    """The mean absolute error in a step."""
    return 0.5 + replica + 4 * step


class Steps:
    """What a rank's stages do before its last F is done."""

    def __init__(self, model: keras.Model, ranks: Ranks, record: Record, last: int) -> None:
        self._model, self._ranks, self._record = model, ranks, record
        self._is_last = ranks.position == last

    def forward(self, step: int) -> None:
        """Ends the F of a step; the last stage's metrics are updated in its F."""
        replica, position = self._ranks.replica, self._ranks.position
        if self._is_last:
            labels = np.full((SAMPLES, 1), error_of(replica, step), np.float32)
            self._model.compute_metrics(None, labels, np.zeros_like(labels))
        self._record.after_forward(part_of_loss(replica, position, step))


def expected_logs(step: int) -> dict[str, float]:
    """Means over the steps so far, which the metrics are in an epoch, and over the replicas."""
    steps, replicas = range(step + 1), range(REPLICAS)
    losses = [
        sum(part_of_loss(replica, position, each) for position in range(POSITIONS))
        for replica in replicas
        for each in steps
    ]
    errors = [error_of(replica, each) for replica in replicas for each in steps]
    return {"loss": float(np.mean(losses)), "mae": float(np.mean(errors))}


def check_logs_are_means_and_the_same_on_all_ranks(
    model: keras.Model, ranks: Ranks, make: Make
) -> None:
    """Whichever rank has the last stage: with a V that is the first one."""
    for last in (1, 0):
        model.reset_metrics()
        record = make(last, PATIENCE)
        steps = Steps(model, ranks, record, last)
        for step in range(STEPS):
            steps.forward(step)
            logs = record.logs()
            expected = expected_logs(step)
            assert logs.keys() == expected.keys(), logs
            for name, value in expected.items():
                np.testing.assert_allclose(logs[name], value, rtol=1e-6, err_msg=name)
            assert ranks.world.comm.allgather(sorted(logs.items())) == [sorted(logs.items())] * 4


def check_only_the_last_rank_waits_after_its_last_forward(
    model: keras.Model, ranks: Ranks, make: Make
) -> None:
    """It comes only when the other has gone on; a barrier would hold both here for ever."""
    record = make(1, PATIENCE)
    steps = Steps(model, ranks, record, 1)
    for step in range(STEPS):
        if ranks.position == 0:
            steps.forward(step)
            ranks.pipeline.comm.send(step, 1)
        else:
            assert ranks.pipeline.comm.recv(source=0) == step
            steps.forward(step)
        record.logs()


def check_codes_are_read_a_step_later_on_all_ranks(
    model: keras.Model, ranks: Ranks, make: Make
) -> None:
    """No rank waits for the codes of others: each begins only when the one before has gone on."""
    record = make(1, PATIENCE)
    steps = Steps(model, ranks, record, 1)
    watch = GradientWatch(ENGINE, model)
    watch.begin()
    path = model.layers[-1].kernel.path
    world = ranks.world.comm
    begun: list[Callable[[], np.ndarray]] = []

    def train(step: int) -> None:
        steps.forward(step)
        logs = record.logs()
        if world.rank:
            world.recv(source=world.rank - 1)
        told = watch.notices.own()
        codes = record.begin_codes(path if step == 1 and world.rank == 2 else None, told)
        if world.rank + 1 < world.size:
            world.send(step, world.rank + 1)
        begun.append(codes)
        watch.note(codes, record.checked, 1, logs)

    train(0)
    train(1)
    with pytest.raises(UserError) as raised:
        train(2)
    said = str(raised.value)
    assert said.startswith(f"step 2: the gradient of {path} of rank 2 is not finite"), said
    assert f"(loss {expected_logs(1)['loss']:.4g})" in said
    assert world.allgather(said) == [said] * world.size
    codes = begun[-1]()[: world.size]
    np.testing.assert_array_equal(codes, np.zeros(world.size))  # of the last step


def check_codes_say_which_weight(model: keras.Model, ranks: Ranks, make: Make) -> None:
    """Each rank another one, and one of them none."""
    record = make(1, PATIENCE)
    paths = [checked.weight for checked in record.checked]
    assert paths == [weight.path for weight in reversed(model.trainable_variables)]
    rank = ranks.world.rank
    notices = np.float32([rank, 1])
    codes = record.begin_codes(paths[rank] if rank < len(paths) else None, notices)()
    np.testing.assert_array_equal(codes, [1, 2, 0, 0, 6, 4])  # notices are added up


def check_a_loss_that_does_not_come_is_an_error(
    model: keras.Model, ranks: Ranks, make: Make
) -> None:
    """On the rank that waits for it, and so on those that wait for the metrics."""
    record = make(1, LIMIT)
    what = "the metrics"
    wait: Callable[[], object] = record.logs
    if ranks.position == 1:
        what, wait = "the loss of position 0", partial(record.after_forward, 1.0)
    with pytest.raises(UserError, match=rf"waits at {what} since .*raise timeout \({LIMIT:g} s\)"):
        wait()


def main(names: list[str]) -> None:
    """Runs the checks, all with the same communicator for records, as the plans of a pipeline."""
    ranks = make_ranks(ENGINE.world, POSITIONS, REPLICAS)
    record_world = ranks.world.duplicate()
    for name in names:
        model = compiled()
        transport = Transport(ranks.pipeline.duplicate(), Patience(PATIENCE))

        def make(
            last: int,
            timeout: float,
            model: keras.Model = model,
            transport: Transport = transport,
        ) -> Record:
            return Record(model, ranks, record_world, last, SAMPLES, transport, Patience(timeout))

        globals()[name](model, ranks, make)
        ranks.world.barrier()
        transport.close()
        print(f"held: {name};", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
