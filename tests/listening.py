"""On which addresses a process takes connections, as Linux tells in /proc."""

from __future__ import annotations

import os
from pathlib import Path

LISTEN = "0A"  # state of a TCP socket, as /proc/net/tcp has it
LOOPBACK = (
    "7F",  # 127.0.0.0/8; addresses are turned round by words of four bytes
    "00000000000000000000000001000000",  # ::1
    "0000000000000000FFFF00000100007F",  # ::ffff:127.0.0.1
)


def listening_sockets(process: int) -> dict[str, bool]:
    """The TCP sockets on which a process listens, as /proc writes them; True: on loopback."""
    own = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            own.add(os.readlink(descriptor))
        except OSError:  # it has just been closed
            continue
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTEN and f"socket:[{inode}]" in own:
                address, _ = local.split(":")
                found[local] = address[-2:] == LOOPBACK[0] or address in LOOPBACK
    return found
