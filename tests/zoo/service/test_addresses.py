"""Addresses of services, and which of them lead to another machine."""

from __future__ import annotations

import pytest

from ooodist.errors import UserError
from ooodist.zoo.service.addresses import host_of, is_address, is_loopback


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("127.0.0.1:7077", "127.0.0.1"),
        ("zoo.example.org:0", "zoo.example.org"),
        ("[::1]:80", "::1"),
        ("localhost:65535", "localhost"),
    ],
)
def test_an_address_has_a_host(address: str, host: str) -> None:
    assert is_address(address)
    assert host_of(address) == host


@pytest.mark.parametrize(
    "address",
    ["localhost:", ":7077", "localhost", "/srv/zoo", "./zoo:1", "s3://bucket/zoo", "host:1\n"],
)
def test_other_text_is_no_address(address: str) -> None:
    assert not is_address(address)
    with pytest.raises(UserError, match="it must be host:port"):
        host_of(address)


@pytest.mark.parametrize(
    "address", ["s3://bucket:80", "unix:/tmp/socket:1", "host:\u0661", "", "::1:80", "a b:1"]
)
def test_what_has_a_colon_is_not_always_one(address: str) -> None:
    assert not is_address(address)


def test_a_port_that_there_is_not() -> None:
    with pytest.raises(UserError, match="service is localhost:65536; it must be host:port"):
        host_of("localhost:65536")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_hosts_that_are_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org", ""]
)
def test_hosts_that_may_be_another_machine(host: str) -> None:
    assert not is_loopback(host)
