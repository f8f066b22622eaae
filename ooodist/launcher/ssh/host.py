"""A host that is reached over ssh, as the launcher sees it."""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.host import Host
from ooodist.launcher.ssh.keeper import Facts
from ooodist.launcher.ssh.runner import Orders

# Variables of the environment that belong to this host, login or shell, and not to the job.
_OWN = {"_", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "DISPLAY", "MAIL", "HOSTFILE"}
_OWN_PREFIXES = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_", "LS_COLORS")


@dataclass(frozen=True)
class SshHost(Host):
    """A host with a keeper that runs on it.

    Attributes:
        runner: what starts a runner there.
        facts: what the keeper has said.
        keeper: the pipe to the keeper.
    """

    runner: tuple[str, ...] = field(kw_only=True)
    facts: Facts = field(kw_only=True)
    keeper: int = field(kw_only=True)
    _folders: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        return self.name

    def wrap(self, command: list[str]) -> list[str]:
        """What starts a runner on the host; the command is in its orders."""
        return list(self.runner)

    def orders(self, command: list[str], environment: Mapping[str, str]) -> bytes:
        """What the runner is to read: one line."""
        given = {**passed_on(os.environ), **environment}
        orders = Orders(command, given, self.facts.folder, list(self._folders))
        return json.dumps(asdict(orders)).encode() + b"\n"

    def reserve_port(self, resources: ExitStack) -> int:
        """Takes one of the ports that the keeper has reserved."""
        return self.facts.ports.pop()

    def new_folder(self, cleaner: Cleaner) -> Path:
        """Names a folder below the keeper's; the runners make it."""
        path = Path(self.facts.folder, secrets.token_hex(6))
        self._folders.append(str(path))
        return path

    def add_files(self, cleaner: Cleaner, prefix: str) -> None:
        """Has the keeper remove the files whose absolute path begins with ``prefix``."""
        os.write(self.keeper, prefix.encode() + b"\n")


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that processes on other hosts get from this one."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _OWN and not name.startswith(_OWN_PREFIXES)
    }
