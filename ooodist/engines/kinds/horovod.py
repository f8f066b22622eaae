"""Horovod, started by horovodrun, by ooodist's launchers, or by mpirun."""

from __future__ import annotations

from collections.abc import Mapping

from ooodist.engines.kinds import mpi
from ooodist.engines.kinds.kind import NICENESS, Kind, Launched
from ooodist.engines.kinds.started import number

_SIZE = "HOROVOD_SIZE"  # of horovodrun with Gloo


class Horovod(Kind):
    """All-reduces small tensors that are ready at the same time together."""

    name = "horovod"
    engine = "ooodist.engines.horovod:HorovodEngine"
    package = "horovod"
    scatters = True
    gathers = True
    broadcasts = True
    fuses = True
    agreement_trips = 2  # between the workers and their coordinator
    heartbeat_variable = "HOROVOD_GLOO_TIMEOUT_SECONDS"
    listens_at_own_name = True
    starter = "ooodist.launcher.starters.horovod"
    # Controller and operations must be of one library.
    by_mpirun = {  # noqa: RUF012
        "horovod-mpi": {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
    }

    def launched(self, environ: Mapping[str, str]) -> Launched | None:
        """What the variables of horovodrun or of an MPI say."""
        if _SIZE in environ:
            size = number(environ, _SIZE)
            return Launched(size, f"{_SIZE}={size}", on_purpose=True)
        return mpi.launched(environ)

    def launch_command(self, size: int) -> str:
        """Horovod's own."""
        return f"horovodrun -np {size} python -m ooodist.train …"

    def settings(self, environ: Mapping[str, str], stall_seconds: float | None) -> dict[str, str]:
        """Lets it name the exchanges that wait, and the ranks that lack, in time.

        It looks every so many seconds, and says what has waited for as long: twice before the end.
        """
        found = mpi.one_host_settings(environ)
        if stall_seconds is not None:
            found["HOROVOD_STALL_CHECK_TIME_SECONDS"] = str(max(1, int(stall_seconds / 3)))
        return found

    def is_on_one_host(self, environ: Mapping[str, str]) -> bool:
        """As the variables of horovodrun or mpirun say."""
        for prefix in ("HOROVOD", "OMPI_COMM_WORLD"):
            size = environ.get(f"{prefix}_SIZE")
            if size is not None:
                return environ.get(f"{prefix}_LOCAL_SIZE") == size
        return False

    def network_settings(
        self, partition_bytes: int | None, pieces_in_flight: int | None
    ) -> dict[str, str]:
        """Small fusions, long cycles that begin on demand, and urgent threads.

        Measured in ``expr/engines``: two hosts of one core each, links of 250 Mbit/s, sums of 40 MB
        in all.
        """
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
            NICENESS: "-10",  # the threads that send and receive have priority
        }
