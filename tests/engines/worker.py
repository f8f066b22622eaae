"""One rank of the tests on real engines: ``python worker.py ENGINE SIZE [CHECK …]``.

Each function ``check_…`` runs on all ranks; the process ends with 0 if all of them hold.
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from ooodist import engines
from ooodist.engines.base import Engine
from ooodist.errors import UserError

DTYPES = (
    tf.float32,
    tf.float64,
    tf.float16,
    tf.bfloat16,
    tf.int32,
    tf.int64,
    tf.int8,
    tf.uint8,
    tf.int16,
    tf.uint16,
    tf.uint32,
)
SHAPES = ((), (0,), (1,), (2, 0, 3), (3, 5), (1001,), (7, 11, 13))


def _mine(engine: Engine, shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    """A tensor of small integers that differs between the ranks."""
    count = int(np.prod(shape))
    values = (np.arange(count) % 7 + 1) * (engine.rank + 1)
    return tf.cast(tf.reshape(tf.constant(values, tf.int32), shape), dtype)


def _total(engine: Engine, shape: tuple[int, ...]) -> np.ndarray:
    ranks = sum(range(1, engine.size + 1))
    return ((np.arange(int(np.prod(shape))) % 7 + 1) * ranks).reshape(shape)


def check_dtypes_and_shapes(engine: Engine) -> None:
    cases = [(dtype, shape) for dtype in DTYPES for shape in SHAPES]

    @tf.function
    def sums(tensors):
        return [engine.sum_in_graph(t, f"kind/{i}") for i, t in enumerate(tensors)]

    tensors = [_mine(engine, shape, dtype) for dtype, shape in cases]
    for _ in range(3):
        for (dtype, shape), result in zip(cases, sums(tensors), strict=True):
            assert result.dtype == dtype
            assert tuple(result.shape) == shape
            np.testing.assert_array_equal(result.numpy().astype(np.int64), _total(engine, shape))


def check_large(engine: Engine) -> None:
    num_elements = 1_310_723  # more than 5 MB, odd
    values = np.random.default_rng(engine.rank).standard_normal(num_elements, np.float32)
    each = engine.gather(values)

    @tf.function
    def total(tensor):
        return engine.sum_in_graph(tensor, "large")

    expected = each.astype(np.float64).sum(axis=0)
    for _ in range(3):
        result = total(tf.constant(values)).numpy()
        np.testing.assert_allclose(result, expected, atol=1e-5)
        engine.check_equal("the sum", result.tobytes())


def check_many_names_in_any_order(engine: Engine) -> None:
    """Ranks may start exchanges in different orders: nothing orders these."""
    num_names = 200

    @tf.function
    def sums(tensor):
        return tf.stack(
            [engine.sum_in_graph(tensor * i, f"many/{i}.x+1") for i in range(num_names)]
        )

    for repeat in range(20):
        result = sums(tf.fill([3], float(engine.rank + repeat)))
        expected = sum(range(engine.size)) + engine.size * repeat
        np.testing.assert_array_equal(result[:, 0], np.arange(num_names) * float(expected))


def check_constants(engine: Engine) -> None:
    """A constant gradient is exchanged in each call, not once while the graph is optimised."""

    @tf.function
    def total():
        return engine.sum_in_graph(tf.constant([engine.rank + 1.0] * 5), "constant")

    for _ in range(3):
        engine.barrier()
        if engine.rank == 0:
            time.sleep(0.5)
        start = time.monotonic()
        result = total().numpy()
        assert engine.rank == 0 or time.monotonic() - start > 0.4, "not exchanged with rank 0"
        np.testing.assert_array_equal(result, np.full(5, sum(range(1, engine.size + 1))))


def check_unused(engine: Engine) -> None:
    """An exchange whose sum one rank does not use takes place: the others wait for it."""

    @tf.function
    def total(tensor):
        result = engine.sum_in_graph(tensor, "unused")
        return result if engine.rank else tensor

    for _ in range(3):
        result = total(tf.ones([4]))
        np.testing.assert_array_equal(result, np.full(4, engine.size if engine.rank else 1))


def check_equal_tensors(engine: Engine) -> None:
    """Two exchanges of one tensor are not joined: on another rank they are of two tensors."""

    @tf.function
    def total(tensor):
        other = tensor + 1 if engine.rank else tensor
        pair = [engine.sum_in_graph(tensor, "twice/a"), engine.sum_in_graph(other, "twice/b")]
        constant = tf.constant([3.0, 3.0])
        other = constant + 1 if engine.rank else constant
        return [*pair, engine.sum_in_graph(constant, "c"), engine.sum_in_graph(other, "d")]

    size, others = engine.size, engine.size - 1
    for _ in range(3):
        for result, expected in zip(
            total(tf.ones([2])), (size, size + others, 3 * size, 3 * size + others), strict=True
        ):
            np.testing.assert_array_equal(result, np.full(2, expected))


def check_name_used_again(engine: Engine) -> None:
    """One name for the exchanges of several steps in one graph: they follow each other."""

    @tf.function
    def steps(tensor):
        results = []
        for step in range(4):
            with tf.name_scope(f"step{step}"):
                results.append(engine.sum_in_graph(tensor + step, "again"))
        return results

    for _ in range(10):
        for step, result in enumerate(steps(tf.ones([1000]))):
            np.testing.assert_array_equal(result, np.full(1000, engine.size * (1 + step)))


def check_order_is_followed(engine: Engine) -> None:
    """An exchange that depends on another starts after it, also across control edges."""

    @tf.function
    def chain(tensor):
        first = engine.sum_in_graph(tensor, "chain/first")
        with tf.control_dependencies([first.op]):
            second = engine.sum_in_graph(tf.identity(tensor), "chain/second")
        return engine.sum_in_graph(first + second, "chain/third")

    np.testing.assert_array_equal(chain(tf.ones([2])), np.full(2, 2 * engine.size**2))


def check_eager(engine: Engine) -> None:
    for repeat in range(3):
        result = engine.sum_in_graph(tf.fill([2, 2], float(repeat)), "eager")
        np.testing.assert_array_equal(result, np.full((2, 2), repeat * engine.size))


def check_wrong_reuse_of_a_name(engine: Engine) -> None:
    engine.sum_in_graph(tf.ones([2]), "fixed")
    with pytest.raises(RuntimeError, match=r"'fixed' is of float32 \(3,\), but was of float32"):
        engine.sum_in_graph(tf.ones([3]), "fixed")
    with pytest.raises(RuntimeError, match=r"is of int32 \(2,\)"):
        engine.sum_in_graph(tf.ones([2], tf.int32), "fixed")


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
    assert third == sum(1 / 3 + rank for rank in ranks)
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
    ranks = engine.gather(np.array([engine.rank, engine.local_rank, engine.local_size]))
    everyone = np.arange(engine.size)
    np.testing.assert_array_equal(ranks[:, 0], everyone)
    np.testing.assert_array_equal(ranks[:, 1], everyone)  # all on this host
    np.testing.assert_array_equal(ranks[:, 2], np.full(engine.size, engine.size))
    assert engine.rank == int(os.environ["OOODIST_RANK"])
    assert not tf.distribute.has_strategy()


def check_init_again(engine: Engine) -> None:
    assert engines.init() is engine
    assert engines.init(engine.name) is engine
    assert engines.current() is engine
    other = "local" if engine.name != "local" else "collective"
    with pytest.raises(UserError, match=f"'{other}' was asked for, but engine {engine.name} is"):
        engines.init(other)
    with pytest.raises(UserError, match=f"workers is 9, but engine {engine.name} runs"):
        engines.init(workers=9)


def main(name: str, size: int, wanted: list[str]) -> None:
    """Runs the checks and shuts down."""
    engine = engines.init("auto", workers=size)
    assert (engine.name, engine.size) == (name, size)
    for check, function in list(globals().items()):
        if check.startswith("check_") and (not wanted or check in wanted):
            function(engine)
            if engine.rank == 0:
                print("held:", check, flush=True)
    engines.shutdown()
    engines.shutdown()
    with pytest.raises(UserError, match="no engine is in use"):
        engines.current()
    with pytest.raises(UserError, match="start a new process"):
        engines.init()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    except BaseException:
        import traceback

        traceback.print_exc()
        engines.abort(1)
