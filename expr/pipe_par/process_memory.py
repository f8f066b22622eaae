"""What the kernel says of the memory of this process."""

from __future__ import annotations

from pathlib import Path


def status(key: str) -> int:
    """Bytes: VmRSS now, or VmHWM, the most ever or since it was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)
