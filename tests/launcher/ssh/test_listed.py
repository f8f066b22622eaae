"""Lists of hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.launcher.ssh.listed import Listed, count_slots, first_workers, read_hosts

NAMES = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,8}", fullmatch=True)
HOSTS = st.lists(
    st.builds(Listed, NAMES, st.integers(1, 9)), min_size=1, unique_by=lambda host: host.name
)


@given(HOSTS)
def test_what_is_written_is_read(hosts: list[Listed]) -> None:
    assert read_hosts(",".join(map(str, hosts))) == hosts


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "hosts.txt"
    file.write_text("# all of them\na\n\nb:2  # with two\nme@c slots=3\n")
    assert read_hosts(str(file)) == [Listed("a", 1), Listed("b", 2), Listed("me@c", 3)]
    assert read_hosts(str(file))[2].host == "c"


@given(HOSTS, st.data())
def test_the_first_workers(hosts: list[Listed], data: st.DataObject) -> None:
    number = data.draw(st.integers(1, count_slots(hosts)))
    taken = first_workers(hosts, number)
    assert count_slots(taken) == number
    assert [host.name for host in taken] == [host.name for host in hosts[: len(taken)]]
    assert [host.slots for host in taken[:-1]] == [host.slots for host in hosts[: len(taken) - 1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:x", "'a:x' is not a host and its number of workers"),
        ("a:0", "'a:0' is not a host"),
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
        first_workers([Listed("a", 1), Listed("b", 2)], 4)
    empty = tmp_path / "hosts.txt"
    empty.write_text("# nobody\n")
    with pytest.raises(UserError, match="there is no host in it"):
        read_hosts(str(empty))
