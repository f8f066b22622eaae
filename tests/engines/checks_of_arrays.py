"""Checks of blocking exchanges of arrays, and of who is where; worker.py runs them on all ranks."""

import os
import socket

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist import engines
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from tests.listening import listening_sockets


def check_all_reduce(engine: Engine) -> None:
    ranks = np.arange(engine.size)
    big = 2**53 + 1
    for operation, expected in {
        "sum": (big + ranks).sum(),
        "max": big + engine.size - 1,
        "min": big,
    }.items():
        result = engine.all_reduce(np.array([[big + engine.rank]]), operation)
        assert result.dtype == np.int64
        assert result.shape == (1, 1)
        assert result[0, 0] == expected
    third = engine.all_reduce(np.array(1 / 3 + engine.rank), "sum")
    assert third.shape == ()
    np.testing.assert_allclose(third, sum(1 / 3 + rank for rank in ranks), rtol=1e-15)
    many = engine.all_reduce(np.random.default_rng(engine.rank).normal(size=20_000), "mean")
    each = [np.random.default_rng(rank).normal(size=20_000) for rank in ranks]
    np.testing.assert_allclose(many, np.mean(each, axis=0), atol=1e-15)
    engine.check_equal("a mean of floats", many.tobytes())
    mean = engine.all_reduce(np.array([engine.rank, 1]), "mean")
    assert mean.dtype == np.float64
    np.testing.assert_array_equal(mean, [ranks.mean(), 1])
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        result = engine.all_reduce(np.full((2, 3), engine.rank, dtype), "mean")
        assert result.dtype == dtype
        np.testing.assert_array_equal(result.astype(np.float64), np.full((2, 3), ranks.mean()))
    assert engine.all_reduce(np.zeros((0, 2)), "max").shape == (0, 2)
    nan = engine.all_reduce(np.array([np.nan if engine.rank == 0 else 1.0]), "sum")
    assert np.isnan(nan[0])


def check_tensors_of_users(engine: Engine) -> None:
    ranks = range(engine.size)
    for dtype in (tf.float32, tf.float16, tf.int64):
        own = tf.fill([2, 3], tf.cast(engine.rank + 1, dtype))
        every = ooodist.allgather(own)
        assert every.dtype == dtype
        assert every.shape == (2 * engine.size, 3)
        np.testing.assert_array_equal(every[:, 0], np.repeat([rank + 1 for rank in ranks], 2))
        total = ooodist.allreduce(own, average=False)
        np.testing.assert_array_equal(total, np.full((2, 3), sum(rank + 1 for rank in ranks)))
    assert float(ooodist.allreduce(float(engine.rank))) == sum(ranks) / engine.size
    traced = tf.function(lambda x: (ooodist.allreduce(x), ooodist.allgather(x)), autograph=False)
    for rows in (1, 2):  # an exchange for each shape
        mean, every = traced(tf.fill([rows], float(engine.rank)))
        np.testing.assert_array_equal(mean, [sum(ranks) / engine.size] * rows)
        np.testing.assert_array_equal(every, np.repeat(ranks, rows))
    ooodist.barrier()
    for function, given, message in (
        (ooodist.allreduce, [1], "the mean of int32 would be rounded"),
        (ooodist.allreduce, ["a"], "a tensor of string cannot be added up"),
        (ooodist.allgather, 1.0, "a scalar has no axis"),
    ):
        with pytest.raises(UserError, match=message):
            function(given)


def check_objects_of_users(engine: Engine) -> None:
    last = engine.size - 1
    own = {"rank": engine.rank, "name": "ä" * engine.rank, "rates": [0.1, None, True]}
    assert ooodist.allgather_object(own) == [
        own | {"rank": rank, "name": "ä" * rank} for rank in range(engine.size)
    ]
    unsendable = np.zeros(3) if engine.rank != last else "only the root's counts"
    assert ooodist.broadcast_object(unsendable, root=last) == "only the root's counts"
    own["itself"] = own
    for value, message in (
        ({3: "three"}, "the key 3 is not text"),
        ([np.zeros(3)], "a value of type ndarray cannot travel"),
        ({"loss": np.float32(1)}, r"a number of NumPy as number.item\(\)"),
        (own, "contains itself"),
    ):
        with pytest.raises(UserError, match=message):  # on the other ranks, too
            ooodist.broadcast_object(value if engine.rank == 0 else None)
        with pytest.raises(UserError, match=message):
            ooodist.allgather_object(value if engine.rank == last else None)
    with pytest.raises(UserError, match=f"root is {engine.size}; it must be 0 to {last}"):
        ooodist.broadcast_object(1, root=engine.size)


def check_broadcast(engine: Engine) -> None:
    for root in (0, engine.size - 1):
        random = np.random.default_rng(engine.rank)
        arrays = [
            random.standard_normal((1100, 1000)).astype(np.float32),  # more than one piece
            np.array(engine.rank + 0.5),
            np.zeros((0, 4), np.int8),
            np.arange(5, dtype=np.uint8) + engine.rank,
            np.array([2**63 - 1 - engine.rank]),
            np.asfortranarray(random.standard_normal((3, 4))),
        ]
        random = np.random.default_rng(root)
        received = engine.broadcast(arrays, root)
        expected = random.standard_normal((1100, 1000)).astype(np.float32)
        np.testing.assert_array_equal(received[0], expected)
        assert received[1] == root + 0.5
        assert received[1].shape == ()
        assert received[2].shape == (0, 4)
        np.testing.assert_array_equal(received[3], np.arange(5) + root)
        assert received[4][0] == 2**63 - 1 - root
        np.testing.assert_array_equal(received[5], random.standard_normal((3, 4)))
    assert engine.broadcast([]) == []
    assert engine.broadcast_text("ä plan" if engine.rank == 0 else "") == "ä plan"
    others = engine.broadcast_text(f"of {engine.rank}", root=engine.size - 1)
    assert others == f"of {engine.size - 1}"
    if engine.size > 1:
        with pytest.raises(RuntimeError, match="have other shapes"):
            engine.broadcast([np.zeros(1 + engine.rank)])


def check_agree(engine: Engine) -> None:
    engine.agree(None)
    last = engine.size - 1
    with pytest.raises(UserError) as failed:
        engine.agree("no such file: ä.yaml" if engine.rank == last else None)
    text = "no such file: ä.yaml"
    assert str(failed.value) == (f"rank {last}: {text}" if last else text)
    with pytest.raises(UserError, match=r"^(rank 0: )?x{900}"):
        engine.agree("x" * 5000)
    engine.agree(None)


def check_check_equal(engine: Engine) -> None:
    engine.check_equal("the plan", "same")
    engine.check_equal("the exchanges", "\n".join(engine.exchanges()))
    if engine.size > 1:
        last = engine.size - 1
        with pytest.raises(UserError, match=rf"the plan differs .* ranks \[{last}\]"):
            engine.check_equal("the plan", b"other" if engine.rank == last else b"same")


def check_places(engine: Engine) -> None:
    assert (ooodist.local_rank(), ooodist.local_size()) == (engine.local_rank, engine.local_size)
    ranks = engine.gather(np.array([engine.rank, engine.local_rank, engine.local_size]))
    everyone = np.arange(engine.size)
    np.testing.assert_array_equal(ranks[:, 0], everyone)
    np.testing.assert_array_equal(ranks[:, 1], everyone)  # all on this host
    np.testing.assert_array_equal(ranks[:, 2], np.full(engine.size, engine.size))
    assert engine.rank == int(os.environ.get("OOODIST_RANK", engine.rank))
    assert not tf.distribute.has_strategy()


def check_nobody_else_reaches_it(engine: Engine) -> None:
    """What this process listens on is loopback, or its network has nothing else."""
    alone = socket.if_nameindex() == [(1, "lo")]
    listening = listening_sockets(os.getpid())
    assert alone or all(is_loopback for is_loopback in listening.values()), listening
    # TensorFlow's server is there, so this can see one.
    assert listening or engine.size == 1 or engine.name != "collective"


def check_init_again(engine: Engine) -> None:
    assert engines.init() is engine
    assert engines.init(engine.name) is engine
    assert engines.current() is engine
    other = "local" if engine.name != "local" else "collective"
    with pytest.raises(UserError, match=f"'{other}' was asked for, but engine {engine.name} is"):
        engines.init(other)
    with pytest.raises(UserError, match=f"workers is 9, but engine {engine.name} runs"):
        engines.init(workers=9)
