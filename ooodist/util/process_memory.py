"""The memory of this process: what it takes, and what it may take, as Linux says."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import NamedTuple

RESOURCES = {"RLIMIT_AS": resource.RLIMIT_AS, "RLIMIT_DATA": resource.RLIMIT_DATA}
STATM = Path("/proc/self/statm")
GROUPS = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")


class Limit(NamedTuple):
    """A limit on the memory of this process: its name, and bytes."""

    name: str
    num_bytes: int


def resident_bytes() -> int | None:
    """The bytes of this process that are in memory now; None where the kernel won't say."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def lowest_limit() -> Limit | None:
    """The lowest limit on the memory of this process; None if there is none.

    Limits are those of the process (``ulimit``, ``prlimit``), and of the control groups that it is
    in, as in a container or a job of a batch system.
    """
    soft = {name: resource.getrlimit(number)[0] for name, number in RESOURCES.items()}
    limits = [Limit(name, most) for name, most in soft.items() if most != resource.RLIM_INFINITY]
    return min([*limits, *_limits_of_groups()], key=lambda limit: limit.num_bytes, default=None)


def _limits_of_groups() -> list[Limit]:
    """The limits of the control group (version 2) of this process and those around it."""
    try:
        lines = GROUPS.read_text().splitlines()
    except OSError:
        return []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return []
    inner = MOUNTED / own
    limits = []
    for folder in (inner, *inner.parents):
        if folder.is_relative_to(MOUNTED):
            try:
                text = (folder / "memory.max").read_text().strip()
            except OSError:  # the outermost group has no limit; a container does not see all
                continue
            if text != "max":
                limits.append(Limit(f"memory.max of the control group {folder}", int(text)))
    return limits
