"""Lists of hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.launcher.ssh.listed import first_workers, read_hosts

NAMES = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,8}", fullmatch=True)
HOSTS = st.dictionaries(NAMES, st.integers(1, 9), min_size=1)


def workers(hosts: dict[str, int]) -> list[str]:
    """The host of each worker."""
    return [name for name, number in hosts.items() for _ in range(number)]


@given(HOSTS)
def test_what_is_written_is_read(hosts: dict[str, int]) -> None:
    text = ",".join(f"{name}:{number}" for name, number in hosts.items())
    assert read_hosts(text) == workers(hosts)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "hosts.txt"
    file.write_text("# all of them\na\n\nb:2  # with two\nme@c slots=3\n")
    assert read_hosts(str(file)) == ["a", "b", "b", "me@c", "me@c", "me@c"]


@given(HOSTS, st.data())
def test_the_first_workers(hosts: dict[str, int], data: st.DataObject) -> None:
    number = data.draw(st.integers(1, sum(hosts.values())))
    taken = first_workers(workers(hosts), number)
    assert len(taken) == number
    assert taken == workers(hosts)[:number]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:x", "'a:x' is not a host and its number of workers"),
        ("a:0", "'a:0' is not a host"),
        ("a:10000", "'a:10000' is not a host"),
        ("-oProxyCommand=x", "is not a host"),
        ("a;reboot", "is not a host"),
        ("a,,b", "'' is not a host"),
        ("::1,b", "'::1' is an IPv6 address; .* IPv4"),
        ("[fe80::1]:2,b", "'.fe80::1.:2' is an IPv6 address"),
        ("a:1,a:2", "a is named twice"),
        (",".join(["-"] * 999), "is not a host"),
        ("no/such/file", "there is no such file"),
    ],
)
def test_what_is_no_list(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_hosts(text)


def test_too_few(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"-np 4: --hosts a:1,b:2 takes 3 workers"):
        first_workers(["a", "b", "b"], 4)
    empty = tmp_path / "hosts.txt"
    empty.write_text("# nobody\n")
    with pytest.raises(UserError, match="there is no host in it"):
        read_hosts(str(empty))
