"""Hosts of an emulated network, each with an sshd of its own, with throw-away keys."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from expr.lab.network import Lab
from ooodist.launcher.host import Host

SSHD = "/usr/sbin/sshd"
SEPARATION = Path("/run/sshd")  # sshd wants it
SERVER = """\
ListenAddress {address}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PidFile none
UsePAM no
PasswordAuthentication no
"""
CLIENT = """\
Host *
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  LogLevel ERROR
"""


class SshHosts:
    """The hosts; ``ssh`` is the command to reach them, for ``--ssh``."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.hosts = lab.hosts
        self.ssh = f"ssh -F {folder}/config"
        self.names = [host.name for host in lab.hosts]
        self._folder = folder
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        for key in ("host", "user"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(command, check=True)
        public = " ".join((folder / "host.pub").read_text().split()[:2])
        names = [f"{host.name},{host.address} {public}\n" for host in lab.hosts]
        (folder / "known").write_text("".join(names))
        (folder / "config").write_text(CLIENT.format(folder=folder))
        for host in lab.hosts:
            self.start(host)

    def start(self, host: Host) -> None:
        """Starts the host's sshd, and waits until it answers."""
        config = self._folder / f"{host.name}.sshd"
        config.write_text(SERVER.format(address=host.address, folder=self._folder))
        command = [SSHD, "-D", "-e", "-f", str(config)]
        with (self._folder / f"{host.name}.log").open("ab") as log:
            self._servers[host.name] = subprocess.Popen([*on(host), *command], stderr=log)
        deadline = time.monotonic() + 10
        while True:
            try:
                with host.inside(), socket.create_connection((host.address, 22), timeout=1):
                    return
            except OSError:
                pass
            assert time.monotonic() < deadline, (self._folder / f"{host.name}.log").read_text()
            time.sleep(0.05)

    def stop(self, host: Host) -> None:
        """Ends the host's sshd; connections that it has taken go on."""
        server = self._servers.pop(host.name, None)
        if server is not None:
            server.terminate()
            server.wait()

    def process_id(self, host: Host) -> int:
        """The id of the host's sshd, which has mounts of its own, as has all that it starts."""
        return self._servers[host.name].pid

    def close(self) -> None:
        """Ends all of them."""
        for host in self.hosts:
            self.stop(host)


def on(host: Host) -> list[str]:
    """What puts a command on the host, on all cores of the machine."""
    return replace(host, cores=()).wrap([])


@contextmanager
def ssh_hosts(number: int, folder: Path) -> Iterator[SshHosts]:
    """Hosts that reach each other over ssh, with links of 1 Gbit/s."""
    if not Path(SSHD).exists() or shutil.which("ssh") is None:
        pytest.fail("there is no sshd: run apt-get install openssh-server openssh-client")
    SEPARATION.mkdir(mode=0o755, exist_ok=True)
    with Lab(number, "1Gbit") as lab:
        hosts = SshHosts(lab, folder)
        try:
            yield hosts
        finally:
            hosts.close()
