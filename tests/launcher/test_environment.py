"""What the launcher gives to the processes of each engine: environment, ports, cores."""

import json
import os
import socket
from pathlib import Path

import pytest

from .conftest import Launchers, python

SHOW_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


def environments(launchers: Launchers, engine: str, number: int, *more: str) -> list[dict]:
    """The environment of every worker, by rank."""
    done = launchers.run("-np", str(number), "--engine", engine, *more, *python(SHOW_ENVIRONMENT))
    assert done.returncode == 0, done.stderr
    lines = [line.split("] ", 1) for line in done.stdout.splitlines()]
    by_label = {label.lstrip("["): text for label, text in lines}
    found = [json.loads(by_label[str(rank)]) for rank in range(number)]
    for rank, environment in enumerate(found):
        assert environment["OOODIST_ENGINE"] == engine
        assert environment["OOODIST_RANK"] == environment["OOODIST_LOCAL_RANK"] == str(rank)
        assert environment["OOODIST_SIZE"] == environment["OOODIST_LOCAL_SIZE"] == str(number)
        assert environment["PYTHONUNBUFFERED"] == "1"
    return found


def test_environment_of_local(launchers: Launchers) -> None:
    launchers.environment["OMP_NUM_THREADS"] = "7"
    (environment,) = environments(launchers, "local", 1)
    assert environment["OMP_NUM_THREADS"] == "7"
    assert "TF_CONFIG" not in environment


def test_environment_of_collective(launchers: Launchers) -> None:
    found = [json.loads(e["TF_CONFIG"]) for e in environments(launchers, "collective", 3)]
    addresses = found[0]["cluster"]["worker"]
    assert len(set(addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    for rank, config in enumerate(found):
        assert config["cluster"] == {"worker": addresses}
        assert config["task"] == {"type": "worker", "index": rank}


def test_environment_of_horovod(launchers: Launchers) -> None:
    pytest.importorskip("horovod", reason="run ooodist-engines horovod")
    found = environments(launchers, "horovod", 2)
    for rank, environment in enumerate(found):
        horovod = {
            name.removeprefix("HOROVOD_"): value
            for name, value in environment.items()
            if name.startswith("HOROVOD_")
        }
        assert int(horovod.pop("GLOO_RENDEZVOUS_PORT")) > 0
        assert horovod == {
            "RANK": str(rank),
            "SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_SIZE": "2",
            "CROSS_RANK": "0",
            "CROSS_SIZE": "1",
            "HOSTNAME": "127.0.0.1",
            "CONTROLLER": "gloo",
            "CPU_OPERATIONS": "gloo",
            "GLOO_IFACE": "lo",
            "GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        }


def test_environment_of_byteps(launchers: Launchers) -> None:
    show = f"{SHOW_ENVIRONMENT}; assert os.path.isdir(os.environ['BYTEPS_SOCKET_PATH'])"
    launchers.stand_in("byteps", __init__="", server=SHOW_ENVIRONMENT)
    done = launchers.run("-np", "2", "--engine", "byteps", "--servers", "2", *python(show))
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("[").split("] ", 1) for line in done.stdout.splitlines()]
    found = {label: json.loads(text) for label, text in lines}
    assert sorted(found) == ["0", "1", "scheduler", "server 0", "server 1"]
    for label, environment in found.items():
        assert environment["DMLC_ROLE"] == ("worker" if label.isdigit() else label.split()[0])
        assert environment["DMLC_NUM_WORKER"] == environment["DMLC_NUM_SERVER"] == "2"
        assert environment["DMLC_PS_ROOT_URI"] == environment["DMLC_NODE_HOST"] == "127.0.0.1"
        assert environment["DMLC_PS_ROOT_PORT"] == found["scheduler"]["DMLC_PS_ROOT_PORT"]
        assert ("OOODIST_RANK" in environment) == label.isdigit()
    assert [found[rank]["DMLC_WORKER_ID"] for rank in "01"] == ["0", "1"]
    assert all(found[rank]["BYTEPS_LOCAL_RANK"] == "0" for rank in "01")
    assert all(found[rank]["BYTEPS_LOCAL_SIZE"] == "1" for rank in "01")
    assert found["0"]["BYTEPS_SOCKET_PATH"] != found["1"]["BYTEPS_SOCKET_PATH"]


@pytest.mark.parametrize(
    ("options", "own", "seconds", "of_byteps"),
    [
        ((), {}, "30", "30"),
        ((), {"OOODIST_HEARTBEAT_SECONDS": "40"}, "40", "40"),
        (("--heartbeat", "2.5"), {"OOODIST_HEARTBEAT_SECONDS": "40"}, "2.5", "3"),
        (("--heartbeat", "50"), {"PS_HEARTBEAT_TIMEOUT": "0"}, "50", "0"),
    ],
)
def test_the_limit_of_silence(
    launchers: Launchers,
    options: tuple[str, ...],
    own: dict[str, str],
    seconds: str,
    of_byteps: str,
) -> None:
    """Of workers and helpers; those of BytePS know none but its own variable."""
    launchers.environment |= own
    show = "import os; print(*(os.environ[n] for n in ('OOODIST_HEARTBEAT_SECONDS', "
    show += "'PS_HEARTBEAT_TIMEOUT')))"
    launchers.stand_in("byteps", __init__="", server=show)
    done = launchers.run("-np", "1", "--engine", "byteps", *options, *python(show))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{label}] {seconds} {of_byteps}" for label in ("0", "scheduler", "server 0")
    ]


def test_temporary_files_end_with_the_job(launchers: Launchers) -> None:
    show = "import tempfile; print(tempfile.mkstemp()[1])"
    done = launchers.run("-np", "2", "--engine", "collective", *python(show))
    files = [Path(line.split("] ", 1)[1]) for line in done.stdout.splitlines()]
    assert len(files) == 2
    assert len({file.parent for file in files}) == 1  # one folder a job
    assert not any(file.parent.exists() for file in files)


def test_bind(launchers: Launchers) -> None:
    cores = sorted(os.sched_getaffinity(0))
    number = min(2, len(cores))
    show = "import os; print(sorted(os.sched_getaffinity(0)))"
    done = launchers.run("-np", str(number), "--engine", "collective", "--bind", *python(show))
    shares = sorted(json.loads(line.split("] ", 1)[1]) for line in done.stdout.splitlines())
    assert len(shares) == number
    assert [core for share in shares for core in share] == cores


def test_two_launchers_at_once(launchers: Launchers) -> None:
    # Each worker listens where TF_CONFIG says, as TensorFlow does, and visits all others.
    meet = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
addresses = [address.split(":") for address in config["cluster"]["worker"]]
host, port = addresses[config["task"]["index"]]
server = socket.create_server((host, int(port)))
time.sleep(0.5)
for host, port in addresses:
    socket.create_connection((host, int(port)))
for _ in addresses:
    server.accept()
"""
    shared = ["--engine", "collective", "--share-network"]  # else each has all ports to itself
    arguments = ["-np", "4", *shared, *python(meet)]
    both = [launchers.start(*arguments) for _ in range(2)]
    for launcher in both:
        _, stderr = launcher.communicate(timeout=30)
        assert launcher.returncode == 0, stderr


def test_ports_stay_reserved(launchers: Launchers) -> None:
    # Nobody who asks for a free port may be given one that a worker has not opened yet.
    script = f"{SHOW_ENVIRONMENT}; import time; time.sleep(600)"
    shared = ["--engine", "collective", "--share-network"]
    launcher = launchers.start("-np", "2", *shared, *python(script))
    assert launcher.stdout is not None
    config = json.loads(json.loads(launcher.stdout.readline()[4:])["TF_CONFIG"])
    for address in config["cluster"]["worker"]:
        host, port = address.split(":")
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind((host, int(port)))
    launcher.terminate()
    assert launcher.wait(timeout=10) == 143
