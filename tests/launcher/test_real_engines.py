"""The launcher with the real engines: two workers add up their ranks plus one."""

import os
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from tests.listening import listening_sockets

from .conftest import Launchers

PROGRAMS = {
    "collective": """
import os
import tensorflow as tf
tf.distribute.MultiWorkerMirroredStrategy()  # reads TF_CONFIG, and meets the other worker
@tf.function
def add(value):
    return tf.raw_ops.CollectiveReduceV2(
        input=value, group_size=2, group_key=1, instance_key=1, ordering_token=[],
        merge_op="Add", final_op="Id", communication_hint="ring", timeout_seconds=60)
print("sum", add(tf.constant([int(os.environ["OOODIST_RANK"]) + 1.0])).numpy())
""",
    "horovod": """
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
print("sum", hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum, name="x").numpy())
""",
    "byteps": """
import tensorflow as tf
import byteps.tensorflow as bps
from byteps.tensorflow.ops import _push_pull
bps.init()
print("sum", _push_pull(tf.constant([bps.rank() + 1.0]), "", "x").numpy())
ENDING
bps.shutdown()
""",
}


def watch(launchers: Launchers, *arguments: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Runs a job to its end, and sees that nothing of it can be reached from outside.

    Returns:
        the finished launcher, and how many sockets were seen that take connections.
    """
    launcher = launchers.start(*arguments)
    own = os.readlink("/proc/self/ns/net")
    seen: dict[str, bool] = {}
    while launcher.poll() is None:
        for process in launchers.processes():
            with suppress(OSError):  # it has just ended
                is_alone = os.readlink(f"/proc/{process}/ns/net") != own
                for address, is_loopback in listening_sockets(process).items():
                    seen[address] = is_alone or is_loopback
        time.sleep(0.05)
    stdout, stderr = launcher.communicate()
    assert all(seen.values()), seen
    return subprocess.CompletedProcess(arguments, launcher.returncode, stdout, stderr), len(seen)


def check_sums(launchers: Launchers, engine: str, *more: str, ending: str = "") -> str:
    if engine != "collective":
        pytest.importorskip(engine, reason=f"run ooodist-engines {engine}")
    program = PROGRAMS[engine].replace("ENDING", ending)
    command = ["--", sys.executable, "-c", program]
    limit = ["--timeout", "120"]
    done, listening = watch(launchers, "-np", "2", "--engine", engine, *limit, *more, *command)
    assert listening > 0
    sums = sorted(line for line in done.stdout.splitlines() if "sum" in line)
    assert sums == ["[0] sum [3.]", "[1] sum [3.]"], done.stderr
    assert done.returncode == (137 if ending else 0)
    return done.stderr


def test_collective(launchers: Launchers) -> None:
    stderr = check_sums(launchers, "collective")
    assert "[launch] the workers have a network of their own, without the internet" in stderr


def test_horovod(launchers: Launchers) -> None:
    check_sums(launchers, "horovod")


def test_byteps_with_two_servers(launchers: Launchers) -> None:
    check_sums(launchers, "byteps", "--servers", "2")


def test_byteps_worker_is_killed(launchers: Launchers) -> None:
    # The others would wait for it for ever, and its shared memory would stay.
    ending = "import os, time; bps.rank() == 1 and (time.sleep(1), os.kill(os.getpid(), 9))"
    stderr = check_sums(launchers, "byteps", ending=ending)
    assert "[launch] worker 1 was killed by signal 9" in stderr
