"""Clients of services on other machines: no token travels to someone else, or in plain text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from ooodist.errors import UserError
from ooodist.zoo.entry import Meta
from ooodist.zoo.service.client import ZooClient, ZooUnavailable
from ooodist.zoo.service.server import Service, serve
from ooodist.zoo.zoo import Zoo
from tests.zoo.serving import ANNA, TOKENS, make_model


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@contextlib.contextmanager
def serving_with_tls(
    zoo: Zoo, authority: trustme.CA, folder: Path, *names: str
) -> Iterator[Service]:
    """A service with a certificate for these names, which lies in the folder."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    issued = authority.issue_cert(*names)
    issued.cert_chain_pems[0].write_to_path(certificate)
    key.touch(0o600)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(folder / "authority.pem")
    with serve(zoo, "127.0.0.1:0", tokens=TOKENS, certificate=certificate, key=key) as service:
        yield service


@pytest.fixture
def secure(zoo: Zoo, authority: trustme.CA, tmp_path: Path) -> Iterator[Service]:
    with serving_with_tls(zoo, authority, tmp_path, "127.0.0.1", "localhost") as service:
        yield service


@pytest.mark.parametrize("name", ["authority.pem", "certificate.pem"])
def test_there_and_back(secure: Service, tmp_path: Path, name: str) -> None:
    with ZooClient(secure.address, token=ANNA, certificate=tmp_path / name) as client:
        added = client.register(make_model(), Meta("small"))
        entry, weights = client.fetch(added)
    assert entry.meta.name == "small"
    assert len(weights) == 8


def test_another_authority_is_not_believed(secure: Service, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    with (
        ZooClient(secure.address, token=ANNA, certificate=tmp_path / "other.pem") as zoo,
        pytest.raises(ZooUnavailable, match=f"the zoo at {secure.address} .*certificate"),
    ):
        zoo.list()


def test_another_host_name_is_not_believed(zoo: Zoo, tmp_path: Path, authority: trustme.CA) -> None:
    with (
        serving_with_tls(zoo, authority, tmp_path, "example.org") as service,
        ZooClient(service.address, token=ANNA, certificate=tmp_path / "authority.pem") as client,
        pytest.raises(ZooUnavailable, match="certificate"),
    ):
        client.list()


def test_both_sides_must_use_it(secure: Service, zoo: Zoo, tmp_path: Path) -> None:
    with ZooClient(secure.address, token=ANNA) as client, pytest.raises(ZooUnavailable):
        client.list()
    with (
        serve(zoo, "127.0.0.1:0", tokens=TOKENS) as plain,
        ZooClient(plain.address, token=ANNA, certificate=tmp_path / "certificate.pem") as client,
        pytest.raises(ZooUnavailable),
    ):
        client.list()


@pytest.mark.parametrize("address", ["10.0.0.1:7077", "grpc://zoo.example.org:7077"])
def test_no_token_goes_to_another_machine_in_plain_text(address: str) -> None:
    with pytest.raises(UserError, match=r"must not travel in plain text; give the certificate"):
        ZooClient(address, token=ANNA)


def test_a_certificate_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    for name in ("text.pem", "missing.pem"):
        with pytest.raises(UserError, match=f"{name} cannot be used"):
            ZooClient("localhost:1", token=ANNA, certificate=tmp_path / name)
