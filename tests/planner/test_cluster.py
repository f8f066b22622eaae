"""Described networks against the formulas, worked out by hand; text of bandwidths and latencies."""

from __future__ import annotations

from typing import Any

import pytest

from ooodist.errors import UserError
from ooodist.planner.cluster import describe_network, parse_bandwidth, parse_latency
from ooodist.planner.costs import Network

GBIT = 1e9


@pytest.mark.parametrize(
    # Others in flight hide the trips of a ring, but not with Horovod, which runs one at a time.
    ("engine", "hidden", "in_turn"),
    [("horovod", 60e-6, 180e-6), ("collective", 180e-6, 0.0)],
)
def test_ring(engine: str, hidden: float, in_turn: float) -> None:
    # 4 workers at 8 Gbit/s = 1 GB/s: each byte is sent 2 * 3 / 4 times, in 6 steps.
    network = describe_network(engine, 4, 8 * GBIT, 30e-6)
    assert network.seconds_per_byte == pytest.approx(1.5e-9)
    assert network.pull_seconds_per_byte == 0
    assert network.latency == pytest.approx(hidden)
    assert network.fixed == pytest.approx(in_turn)
    assert not network.by_urgency


def test_servers_on_the_workers_hosts() -> None:
    network = describe_network("byteps", 4, 8 * GBIT, 30e-6)
    assert network.seconds_per_byte == pytest.approx(1.5e-9)
    assert network.pull_seconds_per_byte == 0
    assert network.latency == pytest.approx(120e-6)
    assert network.by_urgency


@pytest.mark.parametrize(("servers", "slower"), [(8, 1), (4, 1), (2, 2), (1, 4)])
def test_servers_of_their_own(servers: int, slower: float) -> None:
    network = describe_network("byteps", 4, 8 * GBIT, 0, servers=servers)
    assert network.seconds_per_byte == pytest.approx(slower * 1e-9)
    assert network.pull_seconds_per_byte == pytest.approx(slower * 1e-9)


def test_devices_of_a_host_push_its_sum_once() -> None:
    # 4 hosts push to 2 servers, whatever the number of devices; inside it is 2 * 1 / 2 times.
    network = describe_network("byteps", 8, 8 * GBIT, 0, servers=2, devices=2, inside=800 * GBIT)
    assert network.seconds_per_byte == pytest.approx(2e-9 + 1 / 100e9)
    assert network.pull_seconds_per_byte == pytest.approx(2e-9)


@pytest.mark.parametrize("engine", ["horovod", "collective", "byteps"])
def test_hosts_with_several_devices(engine: str) -> None:
    # 2 hosts of 8: 2 * 7 / 8 times inside at 100 GB/s, then 2 * 1 / 2 times at 1 GB/s.
    network = describe_network(engine, 16, 8 * GBIT, 30e-6, devices=8, inside=800 * GBIT)
    assert network.workers == 16
    assert network.seconds_per_byte == pytest.approx(1.75 / 100e9 + 1e-9)
    trips = {"byteps": (4, 0), "collective": (2, 0), "horovod": (2, 2)}[engine]
    assert (network.latency, network.fixed) == pytest.approx([30e-6 * trip for trip in trips])


def test_devices_of_one_host_need_no_wire() -> None:
    network = describe_network("horovod", 4, 8 * GBIT, 30e-6, devices=4, inside=80 * GBIT)
    assert network.seconds_per_byte == pytest.approx(1.5e-10)
    assert (network.latency, network.fixed) == (0, 0)


def test_one_worker_exchanges_nothing() -> None:
    assert describe_network("local", 1, GBIT, 1e-3) == Network("local", 1)
    assert describe_network("horovod", 1, GBIT, 1e-3) == Network("horovod", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "mpi"}, "engine is mpi, which sums no gradients"),
        ({"workers": 0}, "workers is 0"),
        ({"engine": "local"}, "workers is 4 with engine local"),
        ({"bandwidth": 0.0}, "bandwidth is 0 bits a second; it must be more than 0"),
        ({"latency": -1.0}, "latency is -1 s"),
        ({"servers": 4}, "servers is 4, but engine horovod has none"),
        ({"engine": "byteps", "servers": 0}, "servers is 0; give at least 1"),
        ({"devices": 3, "inside": GBIT}, "devices is 3 with 4 workers; it must divide them"),
        ({"devices": 0}, "devices is 0 with 4 workers"),
        ({"devices": 2}, "inside is not given with 2 devices a host"),
        ({"inside": GBIT}, r"inside is 1e\+09 bits a second with 1 device a host"),
        ({"devices": 2, "inside": 0.0}, "inside is 0 bits a second; it must be more than 0"),
    ],
)
def test_refuses(arguments: dict[str, Any], message: str) -> None:
    good = {"engine": "horovod", "workers": 4, "bandwidth": GBIT, "latency": 1e-5}
    with pytest.raises(UserError, match=message):
        describe_network(**{**good, **arguments})


@pytest.mark.parametrize(
    ("text", "bits"),
    [("10Gbit", 1e10), ("250Mbit", 2.5e8), ("1.5 Gbit", 1.5e9), (".5Tbit", 5e11), ("8bit", 8)],
)
def test_bandwidth(text: str, bits: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(bits)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30us", 30e-6), ("1ms", 1e-3), ("0.2 s", 0.2), ("0us", 0), ("5ns", 5e-9)]
)
def test_latency(text: str, seconds: float) -> None:
    assert parse_latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "10GB", "10gbit", "Gbit", "-1Gbit", "1e3Mbit", "0Gbit"])
def test_no_bandwidth(text: str) -> None:
    with pytest.raises(UserError, match=f"--bandwidth is {text}; it must be .*10Gbit"):
        parse_bandwidth(text, "--bandwidth")


@pytest.mark.parametrize("text", ["", "30", "30 µs", "-1us", "1m", "us"])
def test_no_latency(text: str) -> None:
    with pytest.raises(UserError, match=r"--latency is .*; it must be a number and one of ns, us"):
        parse_latency(text, "--latency")
