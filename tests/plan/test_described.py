"""Hosts as options describe them; what is wrong with options is in test_pipelines.py."""

from __future__ import annotations

import pytest

from ooodist.errors import UserError
from ooodist.plan.described import described_hosts
from ooodist.plan.options import parse
from ooodist.plan.sizes import settings_of
from ooodist.planner.pipeline.layer_costs import Link
from ooodist.planner.placement.hosts import Hosts
from ooodist.settings.sections import ParallelConfig

BETWEEN = Link(5e-5, 8 / 100e9)
WHOLE = "--hosts 2 --devices 8 --inside 1600Gbit --bandwidth 100Gbit"


def described(text: str) -> Hosts | None:
    return described_hosts(parse(text.split()), BETWEEN)


def test_a_host_has_fast_links_inside() -> None:
    assert described(WHOLE) == Hosts(2, 8, Link(0.0, 8 / 1600e9), BETWEEN)


@pytest.mark.parametrize("text", ["", "--bandwidth 1Gbit", "--devices 8 --bandwidth 1Gbit"])
def test_without_hosts_all_links_are_alike(text: str) -> None:
    assert described(text) is None


@pytest.mark.parametrize("name", ["--devices", "--inside", "--bandwidth"])
def test_hosts_need_all_of_it(name: str) -> None:
    words = WHOLE.split()
    place = words.index(name)
    del words[place : place + 2]
    with pytest.raises(UserError, match=f"--hosts needs {name} as well, for pipelines; give "):
        described(" ".join(words))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--hosts 2", "--hosts 0", "--hosts is 0; it must be a whole number of at least 1"),
        ("--hosts 2", "--hosts 2 3", "--hosts is 2 3, but pipelines are planned for hosts of one"),
        ("--devices 8", "--devices x", "--devices is x; it must be a whole number of at least 1"),
        ("1600Gbit", "99Gbit", "--inside is 99Gbit, which is slower than --bandwidth 100Gbit"),
        ("1600Gbit", "fast", "--inside is fast; it must be a number and one of"),
    ],
)
def test_mistakes(old: str, new: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        described(WHOLE.replace(old, new))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(("text", "number"), [("--devices 8", 8), (WHOLE, 16)])
def test_the_devices_are_those_of_all_hosts(text: str, number: int) -> None:
    options = parse([*text.split(), "--microbatches", "16"])
    sizes = settings_of(options, ParallelConfig())
    assert {size.ranks * size.replicas for size in sizes} == {number}
