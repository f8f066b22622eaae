"""Lists of hosts, from ``--hosts``: ``a:2,b:2``, or a file with a host a line.

A line of a file is ``a:2``, or ``a slots=2`` as in hostfiles of ``mpirun``; ``#`` begins a comment.
Read, a list has the host of each worker: a, a, b, b. Names may begin with ``user@``.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ooodist.errors import UserError

# Nothing that a shell or ssh could take for more than a name: no "-" in front, above all.
_HOST = re.compile(
    r"(?P<name>(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.-]*)"
    r"(?::(?P<number>\d{1,4})|\s+slots\s*=\s*(?P<slots>\d{1,4}))?"
)
_FORM = "give a:2,b:2 or a file with lines such as `a:2` or `a slots=2`"
LOOPBACK = ("localhost", "127.0.0.1")


def read_hosts(text: str) -> list[str]:
    """Reads a list, or the file of this name. Raises UserError if it is none."""
    path = Path(text)
    if os.path.isfile(path):  # also false for what is too long for a path
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--hosts {text}: cannot be read ({error}); {_FORM}") from error
        entries = [line.partition("#")[0].strip() for line in lines]
        return _read([entry for entry in entries if entry], f"--hosts {text}")
    if "/" in text:
        raise UserError(f"--hosts {text}: there is no such file; {_FORM}")
    return _read([entry.strip() for entry in text.split(",")], "--hosts")


def _read(entries: list[str], where: str) -> list[str]:
    hosts: list[str] = []
    for entry in entries:
        if entry.count(":") > 1:
            raise UserError(
                f"{where}: {entry!r} is an IPv6 address; the engines meet over IPv4: give an IPv4 "
                "address, or a name that has one"
            )
        found = _HOST.fullmatch(entry)
        number = int(found["number"] or found["slots"] or 1) if found else 0
        if found is None or number < 1:
            raise UserError(f"{where}: {entry!r} is not a host and its number of workers; {_FORM}")
        if found["name"] in hosts:
            raise UserError(f"{where}: {found['name']} is named twice; add up its workers")
        hosts += [found["name"]] * number
    if not hosts:
        raise UserError(f"{where}: there is no host in it; {_FORM}")
    return hosts


def first_workers(hosts: Sequence[str], number: int) -> Sequence[str]:
    """The hosts of the first ``number`` workers. Raises UserError if there are fewer."""
    if number > len(hosts):
        names = ",".join(f"{name}:{slots}" for name, slots in Counter(hosts).items())
        raise UserError(
            f"-np {number}: --hosts {names} takes {len(hosts)} workers; lower -np, or give more "
            "hosts or workers a host (a:2)"
        )
    return hosts[:number]
