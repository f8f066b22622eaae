"""Environment variables that make an engine follow a plan well, and keep it off open networks.

They are read when the library starts, so they are set before ``ooodist.engines.init``, and only
where the user has not set them. Measured in ``expr/engines``: two hosts of one core each, links of
250 Mbit/s, sums of 40 MB in all.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping

from ooodist.errors import UserError

DEFAULT_PARTITION_BYTES = 1 << 20
BYTEPS_CREDIT = 2  # pieces on their way to the servers
NICENESS = "OOODIST_EXCHANGE_NICENESS"
# Who is silent for so long has gone: an address that a network has lost comes back after less. The
# launcher's --heartbeat sets it for all processes of a job.
HEARTBEAT = "OOODIST_HEARTBEAT_SECONDS"
DEFAULT_HEARTBEAT, LEAST_HEARTBEAT, MOST_HEARTBEAT = 30, 1, 10**6
_HEARTBEATS = {"byteps": "PS_HEARTBEAT_TIMEOUT", "horovod": "HOROVOD_GLOO_TIMEOUT_SECONDS"}
WITHOUT_TCP = {"OMPI_MCA_btl": "^tcp,ofi", "OMPI_MCA_mtl": "^ofi"}  # ofi: libfabric


def planned_settings(
    engine: str,
    partition_bytes: int | None = None,
    pieces_in_flight: int | None = BYTEPS_CREDIT,
    *,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Returns environment variables, by name, for a job that follows a plan.

    Args:
        engine: "local", "collective", "horovod" or "byteps".
        partition_bytes: the plan's partition size in bytes; None if it is not known yet.
        pieces_in_flight: the credit of a plan for BytePS; None: any number.
        environ: the environment of this process; None: os.environ.
    """
    environ = os.environ if environ is None else environ
    if partition_bytes is None and _is_on_one_host(engine, environ):
        # Small pieces and long cycles pay where gradients wait for a network. On one machine each
        # piece is work for a core, and a cycle is a wait: a step of the quick start took 1.11 to
        # 1.15 times as long with BytePS, and one of an MLP 1.07 times with Horovod (expr/at_home),
        # even in a job whose plan is not found yet. The planner measures the engine as it is.
        return _threads()
    return {**_threads(), **_of_library(engine, partition_bytes, pieces_in_flight)}


def _is_on_one_host(engine: str, environ: Mapping[str, str]) -> bool:
    """Returns whether all processes of a Horovod or BytePS job are on this machine."""
    if engine == "byteps":
        address = environ.get("DMLC_PS_ROOT_URI", "")
        return address == "localhost" or address.startswith("127.")
    for prefix in ("HOROVOD", "OMPI_COMM_WORLD"):  # of horovodrun with Gloo, and of mpirun
        size = environ.get(f"{prefix}_SIZE")
        if engine == "horovod" and size is not None:
            return environ.get(f"{prefix}_LOCAL_SIZE") == size
    return False


def one_host_settings(engine: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that close the ports of Open MPI ranks if all share one host.

    Open MPI's TCP listens on all networks of the host, whatever interfaces it is told to use, and
    where TCP is disabled, libfabric's does. Ranks on one host have shared memory instead.

    Args:
        engine: "local", "collective", "horovod", "byteps" or "mpi".
        environ: the environment of this process; if it sets one of the variables, none is returned.
    """
    size = environ.get("OMPI_COMM_WORLD_SIZE")
    if engine not in ("horovod", "mpi") or size is None:
        return {}
    if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") != size:
        return {}
    return {} if WITHOUT_TCP.keys() & environ.keys() else WITHOUT_TCP


def stall_settings(engine: str, seconds: float | None) -> dict[str, str]:
    """Returns variables that let Horovod name the exchanges that wait, and the ranks that lack.

    It looks every so many seconds, and says what has waited for as long: twice before the job ends.

    Args:
        engine: "local", "collective", "horovod", "byteps" or "mpi".
        seconds: after which a job that stands still is ended; None: unknown.
    """
    if engine != "horovod" or seconds is None:
        return {}
    return {"HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(seconds / 3)))}


def heartbeat_seconds(environ: Mapping[str, str]) -> float:
    """Returns for how long processes do without a sign of life of each other, in seconds.

    Raises:
        UserError: OOODIST_HEARTBEAT_SECONDS is no number of seconds.
    """
    given = environ.get(HEARTBEAT, "")
    with contextlib.suppress(ValueError):
        if LEAST_HEARTBEAT <= float(given or DEFAULT_HEARTBEAT) <= MOST_HEARTBEAT:
            return float(given or DEFAULT_HEARTBEAT)
    raise UserError(
        f"{HEARTBEAT} is {given!r}; it must be a number of seconds, {LEAST_HEARTBEAT} to "
        f"{MOST_HEARTBEAT}"
    )


def heartbeat_settings(engine: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the engine's own variable for :func:`heartbeat_seconds`, if it has one.

    Raises:
        UserError: as there.
    """
    seconds = str(math.ceil(heartbeat_seconds(environ)))
    return {_HEARTBEATS[engine]: seconds} if engine in _HEARTBEATS else {}


def planned_credits(engine: str, most: int | None = None) -> tuple[int, ...]:
    """Returns the numbers of exchanges in flight that a plan may choose, up to ``most``.

    With more, the libraries run them in an order of their own (Horovod's cache) or side by side
    (TensorFlow's collectives) rather than in the plan's order.
    """
    credits = (BYTEPS_CREDIT,) if engine == "byteps" else (1, 2)
    return tuple(credit for credit in credits if most is None or credit <= most)


def _threads() -> dict[str, str]:
    """Returns a variable that gives TensorFlow a second thread on a single core.

    TensorFlow has a thread for each core, and a thread follows a chain of ops to its end. With one
    core that leaves no thread to start the exchanges that have become ready meanwhile.
    """
    return {"TF_NUM_INTEROP_THREADS": "2"} if len(os.sched_getaffinity(0)) == 1 else {}


def _of_library(
    engine: str, partition_bytes: int | None, pieces_in_flight: int | None
) -> dict[str, str]:
    if engine == "horovod":
        return {
            # Default 128 MB: what is ready at one time is copied together and completes together,
            # so that the most urgent tensor waits for the rest. With 0 each small one costs a round
            # of messages of its own.
            "HOROVOD_FUSION_THRESHOLD": str(4 << 20),
            # Milliseconds; default 1. In each cycle the workers exchange small messages, even
            # when there is nothing to sum: 10 % of a core at 1 ms, 3 % at 5.
            "HOROVOD_CYCLE_TIME": "5",
            # From our patch: a cycle begins as soon as there is something to sum. Otherwise an
            # exchange that starts when another is complete would wait for the next cycle.
            "HOROVOD_CYCLE_ON_DEMAND": "1",
            # Read by priority.py: the threads that send and receive have priority.
            NICENESS: "-10",
        }
    if engine == "byteps":
        return {
            # Default 4096000. A more urgent tensor waits for the pieces in flight; one of 1 MiB
            # takes 34 ms at 250 Mbit/s.
            "BYTEPS_PARTITION_BYTES": str(partition_bytes or DEFAULT_PARTITION_BYTES),
            # Default 0: unlimited, in the order in which tensors are ready, without priorities.
            "BYTEPS_SCHEDULING_CREDIT": str(pieces_in_flight or 0),
            # Default djb2, which assigns tensors to servers at random; naive: in turn.
            "BYTEPS_KEY_HASH_FN": "naive",
        }
    return {}
