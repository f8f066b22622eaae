"""Environment variables with which an engine carries out a plan best, and listens to nobody else.

They are read when the library starts, so they are set before ``ooodist.engines.init``, and only
where the user has not set them. Measured in ``expr/engines``: two hosts of one core each, links of
250 Mbit/s, sums of 40 MB in all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

DEFAULT_PARTITION_BYTES = 1 << 20
BYTEPS_CREDIT = 2  # pieces on their way to the servers
NICENESS = "OOODIST_EXCHANGE_NICENESS"
WITHOUT_TCP = {"OMPI_MCA_btl": "^tcp,ofi", "OMPI_MCA_mtl": "^ofi"}  # ofi: libfabric


def planned_settings(
    engine: str,
    partition_bytes: int | None = None,
    pieces_in_flight: int | None = BYTEPS_CREDIT,
    *,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Environment variables for a job that runs a plan, each with its value.

    Args:
        engine: "local", "collective", "horovod" or "byteps".
        partition_bytes: that of the plan; None if it is not known yet.
        pieces_in_flight: the credit of a plan for BytePS; None: any number.
        environ: of this process; None: os.environ.
    """
    environ = os.environ if environ is None else environ
    if engine == "byteps" and partition_bytes is None and _is_at_home(environ):
        # Small pieces pay where they wait for a network. On one machine each is work for a core
        # (a step of the quick start takes 1.11 to 1.15 times as long: expr/at_home), also in a
        # job whose plan is not found yet. The planner plans with what the engine has.
        return _threads()
    return {**_threads(), **_of_library(engine, partition_bytes, pieces_in_flight)}


def _is_at_home(environ: Mapping[str, str]) -> bool:
    """Whether BytePS's scheduler, and so everybody, is reached without a network."""
    address = environ.get("DMLC_PS_ROOT_URI", "")
    return address == "localhost" or address.startswith("127.")


def one_host_settings(engine: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables for ranks of Open MPI that share one host: nobody else reaches them.

    Open MPI's TCP listens on all networks of the host, whatever interfaces it is told to use, and
    where it may not, libfabric's does. Such ranks have shared memory.

    Args:
        engine: "local", "collective", "horovod", "byteps" or "mpi".
        environ: of this process; what the user has chosen there is left out.
    """
    size = environ.get("OMPI_COMM_WORLD_SIZE")
    if engine not in ("horovod", "mpi") or size is None:
        return {}
    if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") != size:
        return {}
    return {} if WITHOUT_TCP.keys() & environ.keys() else WITHOUT_TCP


def planned_credits(engine: str, most: int | None = None) -> tuple[int, ...]:
    """How many exchanges a plan for this engine may have in flight, of those up to ``most``.

    With more, the libraries run them in an order of their own (Horovod's cache), or side by side
    (TensorFlow's collectives), and not in that of the plan.
    """
    credits = (BYTEPS_CREDIT,) if engine == "byteps" else (1, 2)
    return tuple(credit for credit in credits if most is None or credit <= most)


def _threads() -> dict[str, str]:
    """TensorFlow has a thread for each core, and one thread follows a chain of ops to its end.

    With one core that leaves nobody to start the exchanges that have become ready meanwhile; a
    second thread does.
    """
    return {"TF_NUM_INTEROP_THREADS": "2"} if len(os.sched_getaffinity(0)) == 1 else {}


def _of_library(
    engine: str, partition_bytes: int | None, pieces_in_flight: int | None
) -> dict[str, str]:
    if engine == "horovod":
        return {
            # Default 128 MB: what is ready at one time is copied together and completes
            # together, so that the most urgent of it waits for the rest. With 0 each small one
            # costs a round of messages of its own.
            "HOROVOD_FUSION_THRESHOLD": str(4 << 20),
            # Milliseconds; default 1. In each cycle the workers exchange small messages, also
            # when there is nothing to add up: 10 % of a core at 1 ms, 3 % at 5.
            "HOROVOD_CYCLE_TIME": "5",
            # Of our patch: a cycle begins as soon as there is something to add up. An exchange
            # that is handed over when another is complete would wait for the next cycle.
            "HOROVOD_CYCLE_ON_DEMAND": "1",
            # Of ours, see priority.py: the threads that send and receive come first.
            NICENESS: "-10",
        }
    if engine == "byteps":
        return {
            # Default 4096000. A more urgent tensor waits for the pieces in flight: one of 1 MiB
            # takes 34 ms at 250 Mbit/s.
            "BYTEPS_PARTITION_BYTES": str(partition_bytes or DEFAULT_PARTITION_BYTES),
            # Default 0: all that there is, in the order in which it is ready, without priorities.
            "BYTEPS_SCHEDULING_CREDIT": str(pieces_in_flight or 0),
            # Default djb2, by which servers get tensors at random; naive: in turn.
            "BYTEPS_KEY_HASH_FN": "naive",
        }
    return {}
