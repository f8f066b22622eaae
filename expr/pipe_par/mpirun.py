"""Starting a worker of these experiments on several ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent


def command(ranks: int, worker: str, *arguments: object, binding: str = "none") -> list[str]:
    """Of mpirun, with a script of this folder.

    Args:
        ranks: so many.
        worker: name of the script.
        arguments: of the script.
        binding: of each rank: "core", or "none", with which there may be more ranks than cores.
    """
    places = ["--bind-to", binding, *(["--oversubscribe"] if binding == "none" else [])]
    started = [sys.executable, str(FOLDER / worker), *map(str, arguments)]
    return ["mpirun", "-np", str(ranks), *places, *started]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Open MPI runs as root only if told so; and processes that wait in it leave their core."""
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PYTHONPATH": str(FOLDER.parents[1]),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **(more or {}),
    }
