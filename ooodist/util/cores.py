"""Divides the cores of a host among the workers that share it.

By itself, TensorFlow has a thread for each core of the host in every worker, so that workers take
the cores from each other. Threads that find nothing to do also spin before they sleep, which takes
the core from the one that computes where there is only one. Measured in ``expr/at_home``.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from ooodist.compat.tensorflow_runtime import stop_spinning
from ooodist.errors import UserError

logger = logging.getLogger("ooodist")

VARIABLE = "OOODIST_CORES"
_SYSTEM = Path("/sys/devices/system/cpu")


def use_own_cores(local_rank: int, local_size: int | None) -> None:
    """Leaves this process its share of the host's cores. Has to come before TensorFlow starts.

    What a launcher or the user has chosen stays: cores, and numbers of threads. Where the cores
    cannot be divided evenly, a worker may use all of them, but an operation has no more threads
    than the share (rounded up). With one core or less, no idle thread spins; with more, spinning
    may help. On a single core, whoever has bound this process to it, TensorFlow gets a second
    thread: it has one for each core, which follows a chain of ops to its end, so that none would
    start the exchanges that become ready meanwhile.

    Args:
        local_rank: number of this process among those of its host.
        local_size: their number; None: unknown.

    Raises:
        UserError: the variable OOODIST_CORES is neither ``own`` (the default) nor ``all``.
    """
    wanted = os.environ.get(VARIABLE, "own")
    if wanted not in ("own", "all"):
        raise UserError(
            f"{VARIABLE} is {wanted!r}; it must be own (each worker of a host has its share of the "
            "cores, the default) or all (each uses all)"
        )
    usable = os.sched_getaffinity(0)
    sharing = 1
    if wanted == "own" and local_size is not None and _may_use_all():
        sharing = local_size
    if sharing > 1:
        _take_share(usable, local_rank, sharing)
    if len(os.sched_getaffinity(0)) == 1:
        os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")
    if wanted == "own" and len(usable) <= sharing and not stop_spinning():
        logger.info(
            "TensorFlow started before ooodist.init: its idle threads spin, which slows others down"
        )


def _take_share(usable: set[int], local_rank: int, local_size: int) -> None:
    share, left = divmod(len(usable), local_size)
    if left:
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(share + 1))
        has = f"{os.environ['TF_NUM_INTRAOP_THREADS']} thread(s) for an operation"
    else:
        own = shares(usable, local_size)[local_rank]
        for thread in threads():  # libraries have started some already
            with contextlib.suppress(ProcessLookupError):  # it has ended in the meantime
                os.sched_setaffinity(thread, own)
        has = f"core(s) {', '.join(map(str, own))}"
    logger.info(
        "%d workers share %d cores; this one has %s (%s=all: each uses all)",
        local_size,
        len(usable),
        has,
        VARIABLE,
    )


def _may_use_all() -> bool:
    """Whether nobody has bound this process: it may use what the first one of its machine may."""
    try:
        return os.sched_getaffinity(0) == os.sched_getaffinity(1)
    except OSError:  # in a sandbox that hides it
        return False


def shares(cores: Iterable[int], number: int) -> list[tuple[int, ...]]:
    """Divides the cores into so many shares, which differ by one core at most.

    What Linux calls a CPU is a core here. Those of one processor, and the two threads of one
    physical core, stay together as far as possible.

    Args:
        cores: the numbers of the cores.
        number: from 1 to the number of cores.
    """
    ordered = sorted(cores, key=_place)
    bounds = [index * len(ordered) // number for index in range(number + 1)]
    return [tuple(sorted(ordered[begin:end])) for begin, end in itertools.pairwise(bounds)]


def _place(core: int) -> tuple[int, int, int]:
    """The numbers of a core's processor and physical core, and its own."""
    topology = _SYSTEM / f"cpu{core}" / "topology"
    try:
        processor, physical = (
            int((topology / name).read_text()) for name in ("physical_package_id", "core_id")
        )
    except (OSError, ValueError):  # an emulated machine may not say
        return 0, core, core
    return processor, physical, core


def threads() -> set[int]:
    """The ids of this process's threads."""
    return {int(name) for name in os.listdir("/proc/self/task")}
