"""A delayed cable: what it carries, and what it loses."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading

import pytest

from expr.lab import cable


class _OverError(Exception):
    """Ends a cable, which carries forever."""


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOBUFS])
def test_packets_are_lost_while_the_other_end_is_down(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, of_host = socket.socketpair(type=socket.SOCK_DGRAM)
    switch, of_switch = socket.socketpair(type=socket.SOCK_DGRAM)
    is_down, is_over = threading.Event(), threading.Event()
    is_down.set()
    write = os.write

    def write_if_up(end: int, packet: bytes) -> int:
        if is_over.is_set():
            raise _OverError
        if is_down.is_set():
            raise OSError(code, "link down")  # as an interface that is down says
        return write(end, packet)

    monkeypatch.setattr(os, "write", write_if_up)
    ends = (of_host.fileno(), of_switch.fileno())

    def carry() -> None:
        with contextlib.suppress(_OverError):
            cable.carry(*ends, 0.01)

    carrier = threading.Thread(target=carry, daemon=True)
    carrier.start()
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
    # A cable that stayed would take packets of the next test's sockets, whose descriptors are the
    # same.
    is_over.set()
    host.send(b"the last one")
    carrier.join(10)
    assert not carrier.is_alive()
