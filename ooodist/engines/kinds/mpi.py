"""MPI, for pipelines; started by mpirun or by Slurm."""

from __future__ import annotations

from collections.abc import Mapping

from ooodist.engines.kinds.kind import Kind, Launched
from ooodist.engines.kinds.started import SLURM_SIZE, number, slurm_tasks

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
WITHOUT_TCP = {"OMPI_MCA_btl": "^tcp,ofi", "OMPI_MCA_mtl": "^ofi"}  # ofi: libfabric


class Mpi(Kind):
    """Ranks send each other messages."""

    name = "mpi"
    engine = "ooodist.engines.mpi:MpiEngine"
    package = "mpi4py"
    runs_pipelines = True
    is_detected = False  # what mpirun has started may as well be Horovod's
    danger = "mpirun listens on all networks"
    starter = None
    by_mpirun = {"mpi": {}}  # noqa: RUF012

    def launched(self, environ: Mapping[str, str]) -> Launched | None:
        """What the variables of an MPI say, unless they are those of horovodrun."""
        return None if "HOROVOD_SIZE" in environ else launched(environ)

    def launch_command(self, size: int) -> str:
        """That of MPI."""
        return f"mpirun -np {size} python -m ooodist.train …"

    def settings(self, environ: Mapping[str, str], stall_seconds: float | None) -> dict[str, str]:
        """Closes the ports of ranks that share one host."""
        return one_host_settings(environ)


def launched(environ: Mapping[str, str]) -> Launched | None:
    """What the variables of an MPI's launcher say."""
    for variable in _SIZES:
        if variable in environ:
            size = number(environ, variable)
            return Launched(size, f"{variable}={size}")
    if "PMIX_RANK" in environ and (tasks := slurm_tasks(environ)):  # srun --mpi=pmix
        return Launched(tasks, f"PMIX_RANK, {SLURM_SIZE}={tasks}")
    return None


def one_host_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Makes variables that close the ports of Open MPI ranks if all share one host.

    Open MPI's TCP listens on all networks of the host, whatever interfaces it is told to use, and
    where TCP is disabled, libfabric's does. Ranks on one host have shared memory instead. If the
    environment sets one of the variables, none is made.
    """
    size = environ.get("OMPI_COMM_WORLD_SIZE")
    if size is None or environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") != size:
        return {}
    return {} if WITHOUT_TCP.keys() & environ.keys() else dict(WITHOUT_TCP)
