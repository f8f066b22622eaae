"""A host that is reached over ssh, as the launcher sees it."""

import json
import os
import secrets
import shlex
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.host import Host
from ooodist.launcher.ssh.keeper import TERMINATE
from ooodist.launcher.ssh.runner import Orders

# Variables of the environment that belong to this host, login or shell, and not to the job.
_OWN = {"_", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "DISPLAY", "MAIL", "HOSTFILE"}
_OWN_PREFIXES = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_", "LS_COLORS")


@dataclass(frozen=True)
class SshHost(Host):
    """A host with a keeper that runs on it.

    Attributes:
        line: the command to which a line for the host's shell is appended, as ``ssh … host``.
        module: a line for that shell that runs a module of ooodist, but for the module's name.
        python: the path of Python there.
        own_name: what it calls itself.
        folder: a temporary folder there, which the keeper removes.
        ports: those that the keeper has reserved and nobody has taken yet.
        keeper: the pipe to the keeper.
    """

    line: tuple[str, ...] = ()
    module: str = ""
    python: str = ""
    own_name: str = ""
    folder: str = ""
    ports: list[int] = field(default_factory=list)
    keeper: int = -1
    _folders: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        return self.name

    def wrap(self, command: list[str]) -> list[str]:
        """What starts a runner on the host; the command is in its orders."""
        return [*self.line, f"{self.module}ooodist.launcher.ssh.runner"]

    def orders(self, command: list[str], environment: Mapping[str, str]) -> bytes:
        """What the runner is to read: one line."""
        given = {**passed_on(os.environ), **environment}
        orders = Orders(command, given, self.folder, list(self._folders))
        return json.dumps(asdict(orders)).encode() + b"\n"

    def reserve_port(self, resources: ExitStack) -> int:
        """Takes one of the ports that are reserved."""
        return self.ports.pop()

    def new_folder(self, cleaner: Cleaner) -> Path:
        """Names a folder below the keeper's; the runners make it."""
        path = Path(self.folder, secrets.token_hex(6))
        self._folders.append(str(path))
        return path

    def add_files(self, cleaner: Cleaner, prefix: str) -> None:
        """Has the keeper remove the files whose absolute path begins with ``prefix``."""
        os.write(self.keeper, prefix.encode() + b"\n")

    def terminate_ranks(self) -> None:
        """Has the keeper send SIGTERM to the ranks of ``mpirun``."""
        with suppress(BrokenPipeError):  # the host is gone
            os.write(self.keeper, TERMINATE.encode() + b"\n")


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that processes on other hosts get from this one."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _OWN and not name.startswith(_OWN_PREFIXES)
    }


def module_line(python: str, folder: Path) -> str:
    """Makes ``SshHost.module``: for a shell that begins in the home folder."""
    search = os.environ.get("PYTHONPATH")
    variables = f"PYTHONPATH={shlex.quote(search)} " if search else ""
    return f"cd {shlex.quote(str(folder))} && {variables}exec {shlex.quote(python)} -m "
