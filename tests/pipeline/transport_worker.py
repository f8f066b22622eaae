"""Two ranks that exchange messages: ``mpirun -np 2 python transport_worker.py CHECK...``."""

from __future__ import annotations

import sys
import time

import numpy as np
import tensorflow as tf
from mpi4py import MPI

from ooodist.engines.communicator import Communicator
from ooodist.pipeline.runtime.boundary import TensorBoundary
from ooodist.pipeline.runtime.transport import Transport
from ooodist.planner.pipeline.actions import Kind
from ooodist.util.patience import Patience, Stalled

LARGE = 16 << 20  # bytes; far above what MPI hands over without the receiver
LIMIT, PATIENCE = 2.0, 30.0  # seconds; of a message, and of these checks on a busy machine


def messages(number: int) -> list[np.ndarray]:
    """Of several dtypes and sizes, one of them empty."""
    random = np.random.default_rng(number)
    return [
        random.normal(size=(3, number + 1)).astype(np.float32),
        random.integers(0, 9, (number,)),
        np.array(number % 2 == 0),
    ]


def check_every_array_arrives(transport: Transport) -> None:
    """Both ways at once, received in another order than sent."""
    peer = 1 - transport.rank
    expected = {number: messages(number) for number in range(20)}
    waiting = {
        number: transport.receive(f"RECV{number}", peer, number, [np.empty_like(a) for a in those])
        for number, those in reversed(expected.items())
    }
    for number, those in expected.items():
        transport.send(f"SEND{number}", peer, number, those)
    for number, message in waiting.items():
        transport.wait(message)
        for one, other in zip(message.arrays, expected[number], strict=True):
            np.testing.assert_array_equal(one, other)


def check_tensors_arrive(transport: Transport) -> None:
    """Of several dtypes; through the memory of the host, and from where they are."""
    shapes = {"float32": (2, 3), "int32": (4,), "bfloat16": (), "float16": (2, 0), "bool": (3,)}
    specs = [tf.TensorSpec(shape, dtype) for dtype, shape in shapes.items()]
    tf.random.set_seed(1)  # both ranks send the same
    peer = 1 - transport.rank
    for direct in (False, True):
        boundary = TensorBoundary(specs, direct=direct)
        values = [tf.cast(tf.random.uniform(s.shape, 0, 9), s.dtype) for s in specs]
        message = transport.receive("RECV", peer, 3, boundary.receive_buffers(Kind.F))
        transport.send("SEND", peer, 3, boundary.pack(Kind.F, values))
        transport.wait(message)
        for found, value in zip(boundary.unpack(Kind.F, message.arrays), values, strict=True):
            assert found.dtype == value.dtype
            np.testing.assert_array_equal(found.numpy(), value.numpy())
        transport.flush()


def check_sums_and_broadcasts_have_a_root(transport: Transport) -> None:
    """In flight at the same time, of several dtypes, one of them without elements."""
    world = Communicator.of_all()
    sums, sent = [], []
    for root in (0, 1):
        own = np.arange(6, dtype=np.float32).reshape(2, 3) * (1 + world.rank)
        sums.append(transport.sum(f"sum {root}", world, own, root))
        for value in messages(root):
            array = value if world.rank == root else np.zeros_like(value)
            sent.append((value, transport.broadcast(f"value {root}", world, array, root)))
    for root, message in enumerate(sums):
        transport.wait(message)
        times = 3 if world.rank == root else 1 + world.rank  # the others keep their own
        expected = np.arange(6, dtype=np.float32).reshape(2, 3) * times
        np.testing.assert_array_equal(message.arrays[0], expected)
    for value, message in sent:
        transport.wait(message)
        np.testing.assert_array_equal(message.arrays[0], value)


def check_two_ranks_get_the_same_sums(transport: Transport) -> None:
    """Those of one process, bit for bit; in flight together, and each knows when it ran."""
    world, began = Communicator.of_all(), time.perf_counter()
    sizes = (LARGE // 8, 0, 7, LARGE // 4)
    values = [np.random.default_rng(size).normal(size=(2, size)) for size in sizes]
    values.append(np.arange(10).reshape(2, 5))
    sums = [
        transport.sum(f"sum {place}", world, both[world.rank].copy())
        for place, both in enumerate(values)
    ]
    for both, message in zip(values, sums, strict=True):
        transport.wait(message)
        assert message.arrays[0].dtype == both.dtype
        np.testing.assert_array_equal(message.arrays[0], both[0] + both[1])
        assert began < message.began <= message.ended < time.perf_counter()
    assert [each.began for each in sums] == sorted(each.began for each in sums)


def check_one_tag_keeps_the_order(transport: Transport) -> None:
    """What is sent under one tag arrives in order, as steps do that follow each other."""
    peer = 1 - transport.rank
    buffers = [np.zeros(1000) for _ in range(10)]
    waiting = [transport.receive("RECV", peer, 7, [buffer]) for buffer in buffers]
    for number in range(10):
        transport.send("SEND", peer, 7, [np.full(1000, number, float)])
    for number, message in enumerate(waiting):
        transport.wait(message)
        assert (buffers[number] == number).all()


def check_moves_while_the_rank_computes(transport: Transport) -> None:
    """Nobody is inside MPI but the thread, and a large message is there all the same."""
    peer = 1 - transport.rank
    buffer = np.zeros(LARGE, np.uint8)
    message = transport.receive("RECV", peer, 1, [buffer])
    sent = transport.send("SEND", peer, 1, [np.full(LARGE, 3, np.uint8)])
    end = time.monotonic() + PATIENCE
    while not (message.done.is_set() and sent.done.is_set()):
        assert time.monotonic() < end
        np.dot(np.ones((200, 200)), np.ones((200, 200)))
    assert (buffer == 3).all()


def check_a_missing_message_is_named(transport: Transport) -> None:
    """Rank 1 sends nothing; rank 0 says so when its limit is over."""
    if transport.rank == 1:
        return
    message = transport.receive("1RECV_B3", 1, 5, [np.zeros(4)])
    began = time.monotonic()
    try:
        transport.wait(message)
    except Stalled as error:
        assert LIMIT <= time.monotonic() - began < PATIENCE
        print(f"said: {error}", flush=True)
    else:
        raise AssertionError("it waits for nothing")


def check_flush_waits_until_all_is_taken(transport: Transport) -> None:
    peer = 1 - transport.rank
    if transport.rank == 0:
        sent = transport.send("SEND", peer, 2, [np.ones(LARGE, np.uint8)])
        transport.flush()
        assert sent.done.is_set()
    else:
        time.sleep(0.3)
        transport.wait(transport.receive("RECV", peer, 2, [np.zeros(LARGE, np.uint8)]))


def check_a_mistake_is_raised_where_it_is_waited_for(transport: Transport) -> None:
    """No such rank: MPI's error comes out of wait, on later messages too."""
    for _ in range(2):
        try:
            transport.wait(transport.send("SEND", 99, 1, [np.zeros(1)]))
        except MPI.Exception:
            continue
        raise AssertionError("sent to nobody")


def check_the_end_of_the_thread_is_seen(transport: Transport) -> None:
    """Whatever it ends with; here what is sent later, by the thread, is no memory."""
    peer = 1 - transport.rank
    message = transport.send("SEND", peer, 1, [object()], link_seconds=0.05)
    try:
        transport.wait(message)
    except TypeError:
        return
    raise AssertionError("sent what is no memory")


def main(name: str) -> None:
    """Runs one check on this rank."""
    transport = Transport(Communicator.of_all(), Patience(LIMIT))
    globals()[name](transport)
    MPI.COMM_WORLD.Barrier()
    transport.close()
    print(f"held: {name}", flush=True)


if __name__ == "__main__":
    for check in sys.argv[1:]:
        main(check)
