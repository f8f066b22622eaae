"""A delayed cable: what it carries, and what it loses."""

from __future__ import annotations

import errno
import os
import socket
import threading

import pytest

from expr.lab import cable


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOBUFS])
def test_packets_are_lost_while_the_other_end_is_down(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, of_host = socket.socketpair(type=socket.SOCK_DGRAM)
    switch, of_switch = socket.socketpair(type=socket.SOCK_DGRAM)
    is_down = threading.Event()
    is_down.set()
    write = os.write

    def write_if_up(end: int, packet: bytes) -> int:
        if is_down.is_set():
            raise OSError(code, "link down")  # as an interface that is down says
        return write(end, packet)

    monkeypatch.setattr(os, "write", write_if_up)
    ends = (of_host.fileno(), of_switch.fileno())
    threading.Thread(target=cable.carry, args=(*ends, 0.01), daemon=True).start()
    for end in (host, switch):
        end.settimeout(0.3)
        end.send(b"lost")
    for end in (host, switch):
        with pytest.raises(TimeoutError):
            end.recv(100)
    is_down.clear()
    for one, other in ((host, switch), (switch, host)):
        one.send(b"carried")
        other.settimeout(10)
        assert other.recv(100) == b"carried"
