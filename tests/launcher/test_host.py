"""Addresses of this machine and of others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ooodist.errors import UserError
from ooodist.launcher.host import ipv4_address
from ooodist.launcher.slurm.addresses import address_of

from .conftest import LOCAL, Launchers, needs_root

NAMES = ["a" * 64, "a..b"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_cannot_be_asked_for(name: str) -> None:
    with pytest.raises(OSError, match="a name has 1 to 63 letters"):
        ipv4_address(name)
    with pytest.raises(UserError, match=f"host {name} of this Slurm job has no IPv4 address here"):
        address_of(name)


def test_hosts_with_such_names(launchers: Launchers) -> None:
    hosts = ",".join(NAMES)
    done = launchers.run("--engine", "horovod", "--hosts", hosts, "--", "true")
    assert done.returncode == 2
    assert "its name does not resolve here to an IPv4 address (between its dots" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("engine", ["horovod", "byteps"])
def test_a_machine_without_loopback(launchers: Launchers, engine: str) -> None:
    needs_root()
    pytest.importorskip(engine, reason=f"run ooodist-engines {engine}")
    job = f"{sys.executable} {LOCAL} -np 2 --engine {engine} -- true"
    setting = "ip address flush dev lo; echo 0 > /proc/sys/net/ipv4/ip_nonlocal_bind; "
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", f"ip link set lo up; {setting}{job}"],
        env=launchers.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert "ooodist: error: this machine has no address 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_current_folder_is_gone(launchers: Launchers) -> None:
    job = f"mkdir $TMPDIR/gone; cd $TMPDIR/gone; rmdir $TMPDIR/gone; {sys.executable} {LOCAL}"
    done = subprocess.run(
        ["sh", "-c", f"{job} -np 1 --engine local -- true"],
        env=launchers.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ooodist: error: the current folder was removed")
