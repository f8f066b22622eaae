"""How an engine is set up when its exchanges follow a plan: environment variables, and why.

They must stand before the engine is initialised. What the user has set is left as it is.
"""

from __future__ import annotations


def planned_settings(engine: str, partition_bytes: int | None = None) -> dict[str, str]:
    """The variables for an engine.

    Args:
        engine: its name.
        partition_bytes: that of the plan; None if it is not known yet.
    """
    settings: dict[str, str] = {}
    if engine == "byteps" and partition_bytes is not None:
        settings["BYTEPS_PARTITION_BYTES"] = str(partition_bytes)
    return settings
