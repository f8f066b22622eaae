"""Parses addresses of zoo services, ``host:port``."""

from __future__ import annotations

import ipaddress
import re

from ooodist.errors import UserError

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def host_of(address: str) -> str:
    """The host of ``host:port``; an IPv6 address loses the brackets it must have.

    Raises:
        UserError: the address has another form.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[2]) >= 2**16:
        raise UserError(f"the address of the zoo's service is {address}; it must be host:port")
    return match[1].strip("[]")


def is_address(text: str) -> bool:
    """Whether a text has the form ``host:port``."""
    return _ADDRESS.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Whether data sent to this host never leaves the machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
