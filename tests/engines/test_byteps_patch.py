"""What patches/byteps-*.patch promises beside right sums (test_byteps_stress.py)."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from .test_byteps_stress import pytestmark, run

__all__ = ["pytestmark"]

WORKER = """
import os
from contextlib import suppress
from pathlib import Path
import numpy as np, tensorflow as tf, byteps.tensorflow as bps
from byteps.tensorflow.ops import _push_pull
bps.init()

parts = [tf.cast(np.random.default_rng(rank).normal(size=10_001), tf.bfloat16) for rank in (0, 1)]
total = _push_pull(parts[bps.rank()], "", "bfloat16")
same = tf.bitcast(total, tf.uint16) == tf.bitcast(parts[0] + parts[1], tf.uint16)
print("bfloat16 as TensorFlow adds it:", total.dtype == tf.bfloat16, bool(tf.reduce_all(same)))

@tf.function
def one_after_the_other(x):
    return _push_pull(_push_pull(x, "", "x"), "", "x")

@tf.function
def at_once(x):
    return [_push_pull(x, "", "big"), _push_pull(x + 1, "", "big")]

@tf.function
def sized(x):
    return _push_pull(x, "", "sized")

def error_of(call, *arguments):
    try:
        call(*arguments)
    except tf.errors.InvalidArgumentError as error:
        return error.message
    return "none"

print("one after the other:", one_after_the_other(tf.constant([1.0])).numpy())
print("at once:", "in flight" in error_of(at_once, tf.ones([4_000_000])))

def server_bytes():
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            variables = (process / "environ").read_bytes().split(b"\\0")
            port = f"DMLC_PS_ROOT_PORT={os.environ['DMLC_PS_ROOT_PORT']}".encode()
            if b"DMLC_ROLE=server" in variables and port in variables:
                pages = int((process / "statm").read_text().split()[1])
                found += pages * os.sysconf("SC_PAGE_SIZE")
    return found

sizes = [3, 1_000_000, 2, *(100_000 * number for number in range(40, 0, -1))]
right, usual = True, 0
for size in sizes:
    result = sized(tf.range(size, dtype=tf.float32) % 100)
    right &= bool(tf.reduce_all(result == 2 * (tf.range(size, dtype=tf.float32) % 100)))
    usual = usual or (server_bytes() if size == 4_000_000 else 0)
growth = (server_bytes() - usual) / 1e6  # MB; a name for each size would be 620
print("other sizes:", right, usual > 1e7, growth < 40 or growth)
print("empty:", sized(tf.ones([0])).shape)
"""


def test_names_sizes_and_types() -> None:
    job = run(2, 1, "-c", WORKER)
    assert job.returncode == 0, job.stdout + job.stderr[-3000:]
    for rank in range(2):
        lines = [line for line in job.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert lines == [
            f"[{rank}] bfloat16 as TensorFlow adds it: True True",
            f"[{rank}] one after the other: [4.]",
            f"[{rank}] at once: True",
            f"[{rank}] other sizes: True True True",
            f"[{rank}] empty: (0,)",
        ]


PRIORITY_WORKER = """
import threading, time
import tensorflow as tf, byteps.tensorflow as bps
from byteps.tensorflow.ops import _push_pull
bps.init()

tensors = {"first": tf.ones([10_000]), "large": tf.ones([16_000_000]), "placed": tf.ones([10_000])}
places = {"first": -1, "large": -1, "placed": 0}
exchanges = {
    name: tf.function(lambda x, name=name: _push_pull(x, "", name, places[name]))
    for name in tensors
}
done = []

def exchange(name):
    exchanges[name](tensors[name])
    done.append(name)

for name in tensors:  # the first is the most urgent, but for those with a place
    exchange(name)
for urgent in ("first", "placed") * 2:
    large = threading.Thread(target=exchange, args=["large"])
    large.start()
    time.sleep(0.01)
    exchange(urgent)
    large.join()
print("done:", *done[3:])
"""


def test_the_urgent_overtakes_what_was_handed_over_before() -> None:
    one_piece_at_a_time = {"BYTEPS_SCHEDULING_CREDIT": "1", "BYTEPS_PARTITION_BYTES": "262144"}
    job = run(2, 1, "-c", PRIORITY_WORKER, variables=one_piece_at_a_time)
    assert job.returncode == 0, job.stdout + job.stderr[-3000:]
    lines = [line for line in job.stdout.splitlines() if "done:" in line]
    assert sorted(lines) == [
        f"[{rank}] done:{' first large placed large' * 2}" for rank in range(2)
    ]


def test_several_ranks_as_one_worker_need_nccl() -> None:
    environment = os.environ | {
        "DMLC_ROLE": "worker",
        "DMLC_NUM_WORKER": "1",
        "BYTEPS_LOCAL_RANK": "0",
        "BYTEPS_LOCAL_SIZE": "2",
    }
    program = "from byteps.tensorflow import ops; print(ops.nccl_built())\nimport ooodist"
    program += "\nooodist.init('byteps')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    if done.stdout == "True\n":
        pytest.skip("BytePS was built with NCCL")
    assert "UserError: BYTEPS_LOCAL_SIZE=2" in done.stderr
    assert "ooodist-engines --gpu byteps" in done.stderr


ENDLESS_WORKER = """
import time
import byteps.tensorflow as bps
bps.init(lazy=False)
print("connected", flush=True)
time.sleep(100)
"""


@contextmanager
def processes(folder: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A job of one worker, without a launcher, which would end it itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_WORKER_ID": "0",
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_LOCAL_RANK": "0",
        "BYTEPS_LOCAL_SIZE": "1",
        "BYTEPS_SOCKET_PATH": str(folder),
        "PS_HEARTBEAT_TIMEOUT": "2",
    }
    programs = {"scheduler": "import byteps.server", "server": "import byteps.server"}
    with ExitStack() as stack:
        started = {}
        for role, program in (programs | {"worker": ENDLESS_WORKER}).items():
            started[role] = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program],
                    env=environment | {"DMLC_ROLE": role},
                    stdout=subprocess.PIPE if role == "worker" else subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(started[role].kill)
        yield started


def test_a_dead_server_ends_the_job(tmp_path: Path) -> None:
    with processes(tmp_path) as job:
        assert job["worker"].stdout
        assert job["worker"].stdout.readline() == "connected\n"
        job["server"].send_signal(signal.SIGKILL)
        for role, missing in (("scheduler", "the server"), ("worker", "the scheduler")):
            _, errors = job[role].communicate(timeout=20)
            assert job[role].returncode == 1
            said = f"the {role} on 127.0.0.1 has not heard from {missing} on 127.0.0.1 for 2 s"
            assert f"BytePS: {said}, ending" in errors
