"""BytePS, started by bpslaunch or by ooodist's launchers."""

from __future__ import annotations

from collections.abc import Mapping

from ooodist.engines.kinds.kind import Kind, Launched
from ooodist.engines.kinds.started import number
from ooodist.errors import UserError

DEFAULT_PARTITION_BYTES = 1 << 20
CREDIT = 2  # pieces on their way to the servers
TRIPS = 4  # gradient, acknowledgment, request for the sum, sum


class Byteps(Kind):
    """Workers push to servers, and pull from them, the most urgent piece first."""

    name = "byteps"
    engine = "ooodist.engines.byteps:BytepsEngine"
    package = "byteps"
    has_servers = True
    sends_by_urgency = True
    credits = (CREDIT,)
    heartbeat_variable = "PS_HEARTBEAT_TIMEOUT"
    starter = "ooodist.launcher.starters.byteps"

    def launched(self, environ: Mapping[str, str]) -> Launched | None:
        """What DMLC_NUM_WORKER and BYTEPS_LOCAL_SIZE say."""
        if not environ.get("DMLC_ROLE"):
            return None
        size = number(environ, "DMLC_NUM_WORKER")
        reason = f"DMLC_ROLE={environ['DMLC_ROLE']}, DMLC_NUM_WORKER={size}"
        local = number(environ, "BYTEPS_LOCAL_SIZE") if "BYTEPS_LOCAL_SIZE" in environ else 1
        if local != 1:
            reason += f", BYTEPS_LOCAL_SIZE={local}"
        return Launched(size * local, reason, on_purpose=True)

    def check_role(self, environ: Mapping[str, str]) -> None:
        """Refuses servers and schedulers."""
        if environ.get("DMLC_ROLE", "worker") != "worker":
            raise UserError(
                f"DMLC_ROLE={environ['DMLC_ROLE']}: this process is to be no worker; start it as "
                "python -c 'import byteps.server'"
            )

    def is_on_one_host(self, environ: Mapping[str, str]) -> bool:
        """As the address of the scheduler says."""
        address = environ.get("DMLC_PS_ROOT_URI", "")
        return address == "localhost" or address.startswith("127.")

    def network_settings(
        self, partition_bytes: int | None, pieces_in_flight: int | None
    ) -> dict[str, str]:
        """Small pieces, few at a time, servers in turn.

        Measured in ``expr/engines``: two hosts of one core each, links of 250 Mbit/s, sums of 40 MB
        in all.
        """
        credit = CREDIT if pieces_in_flight is None else pieces_in_flight
        return {
            # Default 4096000. A more urgent tensor waits for the pieces in flight; one of 1 MiB
            # takes 34 ms at 250 Mbit/s.
            "BYTEPS_PARTITION_BYTES": str(partition_bytes or DEFAULT_PARTITION_BYTES),
            # Default 0: unlimited, in the order in which tensors are ready, without priorities.
            "BYTEPS_SCHEDULING_CREDIT": str(credit),
            # Default djb2, which assigns tensors to servers at random; naive: in turn.
            "BYTEPS_KEY_HASH_FN": "naive",
        }

    def trips(self, hosts: int, servers: int | None) -> int:
        """Those of a push and a pull."""
        return TRIPS if hosts > 1 or servers else 0
