"""What hosts must have the same; the hosts themselves are in test_hosts.py."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from ooodist.errors import UserError
from ooodist.launcher.ssh import keeper, mpirun, preflight
from ooodist.launcher.ssh.host import passed_on
from ooodist.launcher.ssh.keeper import Facts, Request

GOOD = Facts(
    versions={"Python": "3.11.2", "TensorFlow": "2.21.0"},
    program="/usr/bin/python",
    files={"job.yaml": "ab" * 32},
    interface="eth0",
    own_name="a",
    own_address="10.0.0.1",
    ports=[1],
    folder="/tmp/x",
)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"versions": {**GOOD.versions, "TensorFlow": ""}}, "host b has no TensorFlow; install"),
        (
            {"versions": {**GOOD.versions, "TensorFlow": "2.20.0"}},
            "TensorFlow differs: host a has 2.21.0, host b has 2.20.0; install the same on both",
        ),
        ({"files": {"job.yaml": ""}}, "host b has no file job.yaml; copy it there"),
        (
            {"files": {"job.yaml": "cd" * 32}},
            "job.yaml differs: host a has SHA-256 abababababab, host b has SHA-256 cdcdcdcdcdcd",
        ),
        ({"program": ""}, "host b has no program python"),
        ({"interface": ""}, "host b has no network interface with the address"),
        ({"own_address": "127.0.1.1"}, "host b resolves its own name, a, to 127.0.1.1"),
    ],
)
def test_a_host_that_does_not_fit(other: dict, message: str) -> None:
    preflight._check([("a", GOOD), ("b", GOOD)], "horovod", "python")
    with pytest.raises(UserError) as caught:
        preflight._check([("a", GOOD), ("b", replace(GOOD, **other))], "horovod", "python")
    assert message in str(caught.value)


def test_addresses() -> None:
    preflight._check_addresses([("localhost", "127.0.0.1")])
    with pytest.raises(UserError, match=r"host a resolves to 127.0.1.1 here"):
        preflight._check_addresses([("a", "127.0.1.1"), ("b", "10.0.0.2")])
    with pytest.raises(UserError, match="hosts a and b are the same"):
        preflight._check_addresses([("a", "10.0.0.2"), ("b", "10.0.0.2")])
    assert preflight.is_own("127.0.0.1")
    assert not preflight.is_own("192.0.2.1")
    assert preflight.own_address("127.0.0.1") == "127.0.0.1"


def test_facts_of_this_machine() -> None:
    request = Request("127.0.0.1", "mpi", "sh", "/usr/bin:/bin", [__file__, "/nowhere"], 2)
    found = keeper.facts(request, [5, 6], Path(GOOD.folder))
    assert found.versions["TensorFlow"]
    assert found.versions["ooodist"].startswith("0.")
    assert "mpi4py" in found.versions
    assert found.program.endswith("/sh")
    assert len(found.files[__file__]) == 64
    assert not found.files["/nowhere"]
    assert found.interface == "lo"
    assert found.own_name == socket.gethostname()
    assert not keeper.facts(replace(request, address="192.0.2.1"), [], Path(GOOD.folder)).interface


def test_the_environment_of_other_hosts() -> None:
    own = {"SSH_CONNECTION": "x", "PWD": "/", "TMPDIR": "/t", "HOSTNAME": "a"}
    assert passed_on({**own, "PATH": "/bin", "AWS_TOKEN": "y"}) == {
        "PATH": "/bin",
        "AWS_TOKEN": "y",
    }


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"[1,3]<stdout>:epoch 1", ("3", b"epoch 1")),
        (b"[1,0]<stderr>:sum [1,0]<stderr>:[3.]", ("0", b"sum [3.]")),
        (b"mpirun noticed that", (None, b"mpirun noticed that")),
        (b"[12:00:01] src/van.cc", (None, b"[12:00:01] src/van.cc")),
    ],
)
def test_whose_line_it_is(line: bytes, found: tuple[str | None, bytes]) -> None:
    assert mpirun.rank_of(line) == found
