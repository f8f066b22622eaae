"""TensorFlow's own collectives; nothing to build."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ooodist.engines.kinds.kind import Kind, Launched
from ooodist.errors import UserError
from ooodist.util.quantity import counted


class Collective(Kind):
    """Ranks find each other by TF_CONFIG."""

    name = "collective"
    engine = "ooodist.engines.collective:CollectiveEngine"
    scatters = True
    gathers = True
    broadcasts = True
    danger = (
        "TensorFlow's server listens on all networks of this machine and asks for no password: "
        "whoever reaches it can run programs as you"
    )

    def launched(self, environ: Mapping[str, str]) -> Launched | None:
        """What TF_CONFIG says. Raises UserError if it is invalid."""
        workers = cluster(environ)
        if workers is None:
            return None
        size = len(workers[0])
        return Launched(size, f"TF_CONFIG with {counted(size, 'worker')}")

    def variables(self, addresses: Sequence[str], rank: int) -> dict[str, str]:
        """TF_CONFIG."""
        place = {"type": "worker", "index": rank}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": list(addresses)}, "task": place})}


def cluster(environ: Mapping[str, str]) -> tuple[list[str], int] | None:
    """Reads the addresses of all workers and this process's rank from TF_CONFIG; None without it.

    A chief counts as the first worker. Raises UserError if TF_CONFIG is invalid.
    """
    text = environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        jobs = config.get("cluster", {})
        if not jobs:
            return None
        addresses = [str(address) for job in ("chief", "worker") for address in jobs.get(job, [])]
        task, index = config["task"]["type"], int(config["task"]["index"])
        place = index + (len(jobs.get("chief", [])) if task == "worker" else 0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"TF_CONFIG cannot be read ({type(error).__name__}: {error}): {text}; it must be like "
            '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'
        ) from error
    if task not in ("chief", "worker") or not 0 <= index < len(jobs.get(task, [])):
        raise UserError(
            f'TF_CONFIG: task is {task} {index}, which is no "chief" or "worker" of its cluster '
            f"{jobs}; correct it, or unset TF_CONFIG if it is not for this program"
        )
    return addresses, place
