"""Checks of sums in a traced graph; worker.py runs them on all ranks of a job."""

import time

import numpy as np
import pytest
import tensorflow as tf

from ooodist.engines.base import Engine

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


def check_gathering(engine: Engine) -> None:
    """Bits arrive as they are, by rank, also if the sum is of the same name; constants, too."""
    if not engine.kind.gathers:
        return
    bits = np.array(
        [1, 2**31 - 2, 2**31, 2**32 - 1, 0x7F800001], np.uint32
    )  # denormals, zeros, NaNs

    @tf.function
    def all_of(tensor):
        constant = engine.gather_in_graph(tf.fill([1, 2], float(engine.rank)), "gathered/constant")
        results = [engine.gather_in_graph(tensor + i, "gathered/twice") for i in range(2)]
        unchanged = engine.gather_in_graph(tf.bitcast(tf.constant(bits), tf.float32), "bits")
        return constant, *results, unchanged, engine.sum_in_graph(tensor, "gathered/twice")

    tensor = _mine(engine, (2, 3), tf.float32)
    for _ in range(3):
        constant, first, second, unchanged, total = all_of(tensor)
        np.testing.assert_array_equal(constant, np.repeat(np.arange(engine.size), 2).reshape(-1, 2))
        expected = [tensor.numpy() / (engine.rank + 1) * (rank + 1) for rank in range(engine.size)]
        np.testing.assert_array_equal(first, np.concatenate(expected))
        np.testing.assert_array_equal(second, first + 1)
        np.testing.assert_array_equal(unchanged.numpy().view(np.uint32), np.tile(bits, engine.size))
        np.testing.assert_array_equal(total, sum(expected))


def check_scattering(engine: Engine) -> None:
    """Each rank gets its row of the sum, of wide matrices and narrow ones, in their dtype."""
    if not engine.kind.scatters:
        return
    shapes = [(engine.size, 3), (engine.size, (5 << 20) // 4)]

    @tf.function
    def rows_of(matrices):
        twice = [engine.scatter_in_graph(matrices[0], "scattered/twice").total for _ in range(2)]
        large = engine.scatter_in_graph(matrices[1], "scattered/large").total
        half = tf.cast(matrices[0], tf.float16)
        return *twice, large, engine.scatter_in_graph(half, "scattered/half", as_it_is=True).total

    matrices = [_mine(engine, shape, tf.float32) for shape in shapes]
    for _ in range(3):
        first, second, large, half = rows_of(matrices)
        expected = _total(engine, shapes[0])[engine.rank]
        for row in (first, second, half):
            np.testing.assert_array_equal(row.numpy().astype(np.int64), expected)
        assert half.dtype == tf.float16
        own = large.numpy().astype(np.int64)
        np.testing.assert_array_equal(own, _total(engine, shapes[1])[engine.rank])


def check_broadcasting(engine: Engine) -> None:
    """Bits arrive as they are, from each rank, of all dtypes that weights have."""
    if not engine.kind.broadcasts:
        return
    bits = np.array([1, 2**15 - 2, 2**15, 2**16 - 1, 0x7F81, 0, 7, 8], np.uint16)
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64):

        @tf.function
        def from_each(tensor):
            names = [f"broadcast/{tensor.dtype.name}/{root}" for root in range(engine.size)]
            empty = engine.broadcast_in_graph(tensor[:0], f"empty/{tensor.dtype.name}", 0)
            results = [
                engine.broadcast_in_graph(tensor, name, root) for root, name in enumerate(names)
            ]
            return empty, *results, engine.broadcast_in_graph(tensor, names[0], 0)

        own = tf.constant(np.roll(bits, engine.rank).view(dtype.as_numpy_dtype))
        for _ in range(3):
            empty, *results = from_each(own)
            assert empty.shape == (0,)
            for number, result in enumerate(results):
                expected = np.roll(bits, number % engine.size)
                np.testing.assert_array_equal(result.numpy().view(np.uint16), expected)


def check_large(engine: Engine) -> None:
    num_elements = 6_000_011  # 24 MB, which engines split in parts of unlike sizes
    each = [
        np.random.default_rng(rank).standard_normal(num_elements, np.float32)
        for rank in range(engine.size)
    ]

    @tf.function
    def total(tensor):
        return engine.sum_in_graph(tensor, "large")

    expected = np.sum(each, axis=0, dtype=np.float64)
    for _ in range(3):
        result = total(tf.constant(each[engine.rank])).numpy()
        np.testing.assert_allclose(result, expected, atol=1e-5)
        engine.check_equal("the sum", result.tobytes())


def check_many_names_in_any_order(engine: Engine) -> None:
    """Ranks may start exchanges in different orders: nothing orders these."""
    num_names = 60

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
    """A constant gradient is exchanged in each call, not once while the graph is optimized."""

    @tf.function
    def total():
        return engine.sum_in_graph(tf.constant([engine.rank + 1.0] * 5), "constant")

    for _ in range(3):
        engine.barrier()
        if engine.rank == 0:
            time.sleep(0.5)
        begin = time.monotonic()  # a clock that all processes of this machine share
        result = total().numpy()
        end = time.monotonic()
        begin_of_0 = engine.broadcast([np.array(begin)])[0]
        assert end > begin_of_0, "not exchanged with rank 0"
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
