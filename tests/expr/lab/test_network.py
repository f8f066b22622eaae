"""The hosts of an emulated network: what they see of each other, and how fast."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from expr.lab.background_job import BackgroundJob
from expr.lab.network import Lab
from expr.lab.shaping import burst_bytes
from ooodist.errors import UserError
from ooodist.launcher.host import Host
from tests.jobs import needs_built
from tests.launcher.conftest import needs_root, networks_of, python, wait_until

pytestmark = pytest.mark.alone
FLOW = str(Path(__file__).parent / "flow.py")
NUM_BYTES = 4_000_000
TRIES = 10  # on a machine that is busy with something else
# Prints a number of times until it is told to end.
TICK = "import time\nwhile True: print('tick', flush=True); time.sleep(0.01)"


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Three hosts at 100 Mbit/s, of which nothing may be left."""
    needs_root()
    with Lab(3, "100Mbit") as built:
        yield built
    assert not networks_of(os.getpid())


def output(host: Host, script: str) -> str:
    """What a Python script prints on a host."""
    command = host.wrap([sys.executable, "-I", "-S", "-c", script])
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def transfer(lab: Lab, pairs: list[tuple[int, int]], num_bytes: int = NUM_BYTES) -> float:
    """The seconds until all transfers between these pairs of hosts (from, to) have ended."""
    flow = [sys.executable, "-I", "-S", FLOW]
    receivers: list[subprocess.Popen[str]] = []
    senders: list[subprocess.Popen[bytes]] = []
    try:
        for begin, to in pairs:
            receiver, sender = lab.hosts[to], lab.hosts[begin]
            receive = receiver.wrap([*flow, "receive", receiver.address])
            receivers.append(
                subprocess.Popen(
                    receive, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
                )
            )
            stdout = receivers[-1].stdout
            assert stdout
            port = stdout.readline().strip()
            send = [*flow, "send", receiver.address, port, str(num_bytes)]
            senders.append(subprocess.Popen(sender.wrap(send)))
        for each in receivers:
            assert each.stdout
            assert each.stdout.readline() == "connected\n"
        for each in receivers:
            assert each.stdin
            each.stdin.write("go\n")
        times = [each.communicate(timeout=30)[0].split() for each in receivers]
        return max(float(end) for _, end in times) - min(float(begin) for begin, _ in times)
    finally:
        for process in (*receivers, *senders):
            process.kill()
            process.wait()


def check_rate(lab: Lab, pairs: list[tuple[int, int]], rate: float) -> None:
    """Each pair gets ``rate``: never more, and at the best of some times 90 % or more of it."""
    shaped = NUM_BYTES - burst_bytes(round(rate))  # the burst passes at once
    found: list[float] = []
    while len(found) < TRIES and not any(speed > 0.9 * rate for speed in found):
        found.append(8 * NUM_BYTES / transfer(lab, pairs))
        assert found[-1] * shaped / NUM_BYTES < rate
    assert max(found) > 0.9 * rate, found


def test_hosts_know_each_other_by_name(lab: Lab) -> None:
    look_up = "import socket; print(socket.gethostname(), *map(socket.gethostbyname, {names}))"
    names = [host.name for host in lab.hosts]
    addresses = [host.address for host in lab.hosts]
    assert len(set(addresses)) == 3
    for host in lab.hosts:
        found = output(host, look_up.format(names=[*names, "localhost"])).split()
        assert found == [host.name, *addresses, "127.0.0.1"]


def test_a_host_has_its_own_network(lab: Lab) -> None:
    show = "import socket; print(*sorted(name for _, name in socket.if_nameindex()))"
    for host in lab.hosts:
        assert output(host, show) == "eth0 lo"
    no_route = "import socket; print(socket.socket().connect_ex(('192.0.2.1', 80)))"
    assert int(output(lab.hosts[0], no_route)) == 101  # ENETUNREACH


def test_hosts_are_bound_to_cores_in_turn(lab: Lab) -> None:
    usable = sorted(os.sched_getaffinity(0))
    show = "import os; print(*os.sched_getaffinity(0))"
    found = [output(host, show) for host in lab.hosts]
    assert found == [str(usable[index % len(usable)]) for index in range(3)]


def test_rate_is_kept_both_ways_at_once(lab: Lab) -> None:
    check_rate(lab, [(0, 1), (1, 0)], 100e6)


def test_two_senders_share_the_link_of_a_receiver(lab: Lab) -> None:
    check_rate(lab, [(0, 2), (1, 2)], 50e6)


def test_a_short_transfer_takes_its_time(lab: Lab) -> None:
    # 200 kB at 100 Mbit/s: 16 ms, of which a full token bucket saves 4.4.
    shaped = 200_000 - burst_bytes(100_000_000)
    assert transfer(lab, [(0, 1)], num_bytes=200_000) > 8 * shaped / 100e6 > 0.011


def test_set_rate_of_a_running_lab(lab: Lab) -> None:
    lab.set_rate("300Mbit")
    check_rate(lab, [(1, 2)], 300e6)
    lab.set_rate("40Mbit")
    check_rate(lab, [(1, 2)], 40e6)
    with pytest.raises(UserError, match="rate 'fast'"):
        lab.set_rate("fast")


def test_labs_do_not_see_each_other(lab: Lab) -> None:
    with Lab(2, "100Mbit") as other:
        assert other.hosts[0].address == lab.hosts[0].address
        check_rate(other, [(0, 1)], 100e6)
        check_rate(lab, [(0, 1)], 100e6)
    check_rate(lab, [(0, 1)], 100e6)


def test_jobs_take_turns(lab: Lab, tmp_path: Path) -> None:
    command = python(TICK)[1:]
    jobs = [lab.start("collective", command, tmp_path / name) for name in "ab"]
    for job in jobs:
        job.pause()
        assert sorted(job.process_ids) == ["0", "1", "2"]
    for job, other in (jobs, jobs[::-1]):
        job.resume()
        ticks, before = logs(job), logs(other)
        wait_until(
            lambda job=job, ticks=ticks: all(now > was for now, was in zip(logs(job), ticks)),  # noqa: B905
            lambda: "a job that was resumed does not go on",
        )
        job.pause()
        assert logs(other) == before
    with pytest.raises(TimeoutError, match="goes on"):
        jobs[0].wait(0.1)
    os.kill(jobs[0].process_ids["1"], signal.SIGKILL)
    assert jobs[0].wait(10) == 137
    assert jobs[0].failure.startswith("worker 1 was killed by signal 9")
    jobs[0].end()
    jobs[1].end()
    assert not any(Path(f"/proc/{i}").exists() for job in jobs for i in job.process_ids.values())


def logs(job: BackgroundJob) -> list[int]:
    """The bytes that each worker has written."""
    return [(job.log_folder / f"{rank}.log").stat().st_size for rank in range(3)]


def test_environment_of_a_job(lab: Lab, tmp_path: Path) -> None:
    needs_built("byteps")
    show = python("import json, os; print(json.dumps(dict(os.environ)))")[1:]
    job = lab.start("horovod", show, tmp_path, {"HOROVOD_CYCLE_TIME": "7"})
    assert job.wait(20) == 0
    for rank, host in enumerate(lab.hosts):
        environment = json.loads((tmp_path / f"{rank}.log").read_text())
        assert environment["HOROVOD_CYCLE_TIME"] == "7"
        assert environment["HOROVOD_RANK"] == environment["HOROVOD_CROSS_RANK"] == str(rank)
        assert environment["HOROVOD_LOCAL_SIZE"] == environment["OOODIST_LOCAL_SIZE"] == "1"
        assert environment["HOROVOD_HOSTNAME"] == host.address
        assert environment["HOROVOD_GLOO_IFACE"] == "eth0"


def test_tensorflow_is_patient_with_a_job_that_may_be_paused(lab: Lab, tmp_path: Path) -> None:
    show = python("""
from ooodist import engines
engine = engines.init("collective")
assert engine.size == 3
from tensorflow.python.eager import context
print("heartbeat", context.context().coordination_service.heartbeat_timeout_in_ms)
engines.shutdown()
""")[1:]
    job = lab.start("collective", show, tmp_path)
    assert job.wait(90) == 0, job.failure
    assert "heartbeat 172800000\n" in (tmp_path / "0.log").read_text()


def test_servers_of_byteps_are_beside_the_workers(lab: Lab) -> None:
    places = lab.places()
    assert places.servers == places.workers == lab.hosts
    assert lab.places(2).servers == lab.hosts[:2]
    assert lab.places(4).servers == [*lab.hosts, lab.hosts[0]]


def test_a_job_that_cannot_start(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="command not found"):
        lab.start("collective", ["no-such-command"], tmp_path)
    with pytest.raises(UserError, match=r"cannot write /etc/passwd/0\.log"):
        lab.start("collective", ["true"], Path("/etc/passwd"))


@pytest.mark.parametrize(
    "rate", ["", "250", "250MB", "Mbit", "-1Mbit", "1e3Mbit", "0Mbit", "1Tbit"]
)
def test_wrong_rates(rate: str) -> None:
    with pytest.raises(UserError, match="for example 250Mbit"):
        Lab(2, rate)


def test_wrong_labs() -> None:
    with pytest.raises(UserError, match="0 hosts"):
        Lab(0, "1Mbit")
    with pytest.raises(UserError, match="delay '1 ms'"):
        Lab(2, "1Mbit", delay="1 ms")
    with pytest.raises(UserError, match=r"cores \[4095\]: this process may use \["):
        Lab(2, "1Mbit", cores=[4095])


def test_delay() -> None:
    """A packet from host to host takes the delay, and the rate stays what it is."""
    needs_root()
    with Lab(2, "100Mbit", delay="20ms") as lab:
        there_and_back = (
            "import socket, time; begin = time.monotonic(); "
            f"socket.socket().connect_ex(('{lab.hosts[1].address}', 9)); "
            "print(time.monotonic() - begin)"
        )
        output(lab.hosts[0], there_and_back)  # finds the way
        seconds = [float(output(lab.hosts[0], there_and_back)) for _ in range(TRIES)]
        assert 0.04 <= min(seconds) < 0.06
        seconds = [transfer(lab, [(0, 1)]) for _ in range(TRIES)]
        assert 0.32 <= min(seconds) < 0.6
    assert not networks_of(os.getpid())
