"""The launcher with plain commands as workers: how a job ends, and wrong use."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ooodist.launcher import private_network

from .conftest import LOCAL, Launchers, python, wait_until

SERVER_THAT_WAITS = "import os, time; print(os.environ['DMLC_ROLE'], flush=True); time.sleep(600)"
# A worker that has started something which outlives it, and has left shared memory.
FAMILY = """
import os, subprocess, sys, time
rank = os.environ["OOODIST_RANK"]
subprocess.Popen(["sleep", "600"])
open(f"/dev/shm/BytePS_ShM_{os.environ['DMLC_PS_ROOT_PORT']}_{rank}_7", "w").close()
open(os.environ["BYTEPS_SOCKET_PATH"] + "/socket_send_0", "w").close()
print(f"port {os.environ['DMLC_PS_ROOT_PORT']}")  # at once: it may be ended at any time
if rank == "1": ENDING
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        ("sys.exit(3)", 3, "worker 1 exited with code 3"),
        ("os.kill(os.getpid(), 9)", 137, "worker 1 was killed by signal 9 (Killed)"),
        ("os.abort()", 134, "worker 1 was killed by signal 6 (Aborted)"),
    ],
)
def test_one_worker_fails(launchers: Launchers, ending: str, code: int, message: str) -> None:
    launchers.stand_in("byteps", __init__="", server=SERVER_THAT_WAITS)
    worker = python(FAMILY.replace("ENDING", ending))
    done = launchers.run("-np", "3", "--engine", "byteps", *worker)
    assert "still running" not in done.stderr  # SIGTERM was enough
    assert done.returncode == code
    lines = done.stderr.splitlines()
    assert f"[launch] {message}: ending the job" in lines
    # What a signal has ended could not say why; the launcher shows what it had come to.
    (wrote,) = re.findall(r"^\[1\] (port \d+)$", done.stdout, re.MULTILINE)
    wrote = f"[launch] the last that worker 1 wrote: {wrote}"
    assert (wrote in lines) == ("signal" in message)
    check_no_shared_memory(done.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_launcher_is_told_to_end(launchers: Launchers, number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # should these tests run under nohup
    try:
        launcher, port = start_family(launchers)
    finally:
        signal.signal(number, before)
    os.killpg(launcher.pid, number)  # as Ctrl-C in a terminal does
    _, stderr = launcher.communicate(timeout=20)
    assert launcher.returncode == 128 + number
    assert f"[launch] {number.name}: ending the job" in stderr
    assert "still running" not in stderr
    check_no_shared_memory(port)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_job_at_once(launchers: Launchers, number: signal.Signals) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 1; done"
    launcher = launchers.start("-np", "1", "--engine", "local", "--", "sh", "-c", script)
    assert launcher.stdout is not None
    launcher.stdout.readline()
    for _ in range(2):  # as timeout(1) does: this is one request, so the rank may save
        launcher.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(timeout=1.5)
    launcher.send_signal(number)
    _, stderr = launcher.communicate(timeout=12)  # not the 28 s of a first one
    assert launcher.returncode == 128 + number
    assert "[launch] a second signal, killed: worker 0" in stderr


def test_what_is_ignored_from_outside_stays_ignored(launchers: Launchers) -> None:
    script = "kill -HUP $PPID; sleep 0.5; echo goes on"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    try:
        done = launchers.run("-np", "1", "--engine", "local", "--", "sh", "-c", script)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert done.returncode == 0
    assert done.stdout == "[0] goes on\n"


def test_the_launcher_is_killed(launchers: Launchers) -> None:
    launcher, port = start_family(launchers)
    # launcher, cleaner, scheduler, server, two workers, and what each of these has started
    wait_until(lambda: len(launchers.processes()) == 8, lambda: str(launchers.processes()))
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()
    launchers.check_nothing_is_left()
    check_no_shared_memory(port)


def start_family(launchers: Launchers) -> tuple[subprocess.Popen[str], str]:
    """A launcher whose two workers and their children run, and its line with the port."""
    launchers.stand_in("byteps", __init__="", server=SERVER_THAT_WAITS)
    script = FAMILY.replace("ENDING", "pass")
    launcher = launchers.start("-np", "2", "--engine", "byteps", *python(script))
    assert launcher.stdout is not None
    lines = [launcher.stdout.readline() for _ in range(4)]
    return launcher, "".join(line for line in lines if "port" in line)


def check_no_shared_memory(output: str) -> None:
    ports = {line.split("port ")[1] for line in output.splitlines() if "port " in line}
    assert len(ports) == 1
    assert not list(Path("/dev/shm").glob(f"BytePS_ShM_{ports.pop()}_*"))


def test_a_process_that_ignores_sigterm_is_killed(launchers: Launchers) -> None:
    script = "trap '' TERM; test $OOODIST_RANK = 0 && while :; do sleep 1; done; sleep 0.3; exit 4"
    start = time.monotonic()
    done = launchers.run("-np", "2", "--engine", "collective", "--", "sh", "-c", script)
    assert 5 < time.monotonic() - start < 20
    assert done.returncode == 4
    assert "[launch] still running 5 s after SIGTERM, killed: worker 0" in done.stderr


def test_children_of_a_worker_that_has_finished_end_with_the_job(launchers: Launchers) -> None:
    done = launchers.run("-np", "2", "--engine", "collective", "--", "sh", "-c", "sleep 600 & :")
    assert done.returncode == 0


def test_a_server_fails(launchers: Launchers) -> None:
    server = "import os, sys, time; os.environ['DMLC_ROLE'] == 'server' and sys.exit(5); "
    launchers.stand_in("byteps", __init__="", server=server + "time.sleep(600)")
    done = launchers.run("-np", "1", "--engine", "byteps", "--", "sleep", "600")
    assert done.returncode == 5
    assert "[launch] server 0 exited with code 5: ending the job" in done.stderr


def test_servers_end_after_the_workers(launchers: Launchers) -> None:
    launchers.stand_in("byteps", __init__="", server=SERVER_THAT_WAITS)
    done = launchers.run("-np", "1", "--engine", "byteps", "--servers", "2", "--", "sleep", "0.5")
    assert done.returncode == 0
    expected = ["[scheduler] scheduler", "[server 0] server", "[server 1] server"]
    assert sorted(done.stdout.splitlines()) == expected


def test_timeout(launchers: Launchers) -> None:
    done = launchers.run("-np", "1", "--engine", "local", "--timeout", "0.5", "--", "sleep", "600")
    assert done.returncode == 124
    assert "[launch] not finished after 0.5 s (--timeout)" in done.stderr


def test_the_launcher_of_the_package_is_the_same() -> None:
    command = [sys.executable, "-m", "ooodist.launch", "-np", "1", "--engine", "local"]
    done = subprocess.run(
        [*command, "--", "echo", "hi"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[0] hi\n"


INTERFACES = python("import socket; print([name for _, name in socket.if_nameindex()])")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--help"], 0, "private_network COMMAND"),
        (["--np", "2"], 2, "the command to run is --np 2;"),
        ([], 2, "the command to run is missing;"),
    ],
)
def test_options_are_no_programs(arguments: list[str], code: int, text: str) -> None:
    command = [sys.executable, "-m", "ooodist.launcher.private_network", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert text in done.stdout + done.stderr


def test_a_network_of_its_own_needs_no_root() -> None:
    # The source and not the file, which another user may not be allowed to read.
    source = Path(private_network.__file__).read_text()
    program = f"{source.split('if __name__')[0]}\nenter()\nprint(socket.if_nameindex())"
    as_nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-I", "-c", program],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        **as_nobody,
    )
    assert done.stdout == "[(1, 'lo')]\n", done.stderr


def test_where_no_network_can_be_made_it_says_what_is_open(launchers: Launchers) -> None:
    forbid = "echo 0 > /proc/sys/user/max_net_namespaces && exec "
    collective = ["-np", "2", "--engine", "collective"]
    command = [sys.executable, str(LOCAL), *collective, *INTERFACES]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", f"{forbid}{shlex.join(command)}"],
        env=launchers.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("[launch] TensorFlow's server listens on all networks of this machi")
    assert "allows no network of the job's own" in warning
    assert "--engine horovod or byteps" in warning
    asked_for = launchers.run(*collective, "--share-network", *INTERFACES)
    assert "That is what --share-network asks for" in asked_for.stderr
    assert sorted(asked_for.stdout.splitlines()) == sorted(done.stdout.splitlines())


GIVEN = ["-np", "1", "--engine", "local"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "0", "--engine", "local", "--", "true"], "'0' is not a whole number"),
        (["-np", "two", "--engine", "local", "--", "true"], "'two' is not a whole number"),
        (["-np", "1", "--engine", "nccl", "--", "true"], "invalid choice: 'nccl'"),
        ([*GIVEN, "--hosts", "a:0", "--", "true"], "--hosts: 'a:0' is not a host and its number"),
        ([*GIVEN, "--hosts", "a", "--bind", "--", "true"], "--bind is for one machine"),
        ([*GIVEN, "--hosts", "a", "--", "true"], "--engine local is one process"),
        ([*GIVEN, "--min-workers", "1", "--", "true"], "--min-workers is for restarts on several"),
        (["-np", "3", *GIVEN[2:], "--hosts", "localhost:2", "--", "true"], "takes 2 workers"),
        (["-np", "2", "--engine", "local", "--", "true"], "-np 2 with --engine local"),
        (["--engine", "local", "--", "true"], "required: -np"),
        ([*GIVEN], "no command to start"),
        ([*GIVEN, "--"], "no command to start"),
        ([*GIVEN, "--bogus", "true"], "unknown: --bogus (the command to start goes after --)"),
        ([*GIVEN, "no-such-command", "--", "true"], "command not found: no-such-command"),
        ([*GIVEN, "--", "no-such-command"], "command not found: no-such-command"),
        ([*GIVEN, "--", "/etc/passwd"], "command not found: /etc/passwd"),
        ([*GIVEN, "--servers", "2", "--", "true"], "--servers is for --engine byteps"),
        ([*GIVEN, "--share-network", "--", "true"], "--share-network is for --engine collective"),
        ([*GIVEN, "--timeout", "nan", "--", "true"], "'nan' is not a number of seconds"),
        ([*GIVEN, "--heartbeat", "0.5", "--", "true"], "'0.5' is not a number of seconds from 1 "),
        ([*GIVEN, "--log-dir", "/etc/passwd/x", "--", "true"], "--log-dir /etc/passwd/x"),
        (
            ["-np", "4096", "--engine", "collective", "--bind", "--", "true"],
            "--bind with -np 4096: there are only",
        ),
    ],
)
def test_wrong_use(launchers: Launchers, arguments: list[str], message: str) -> None:
    done = launchers.run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_a_python_file_is_a_command_and_all_after_it_is_its_own(
    launchers: Launchers, separator: list[str], tmp_path: Path
) -> None:
    """With TensorFlow's own collectives, if no engine is named."""
    script = tmp_path / "my_training.py"
    script.write_text("# not executable", "utf-8")
    done = launchers.run("-np", "2", "--dry-run", *separator, str(script), "--bind", "--", "x")
    shown = f"{sys.executable} {script} --bind -- x"
    lines = [line for line in done.stdout.splitlines() if "OOODIST_ENGINE=collective" in line]
    assert [line.endswith(shown) for line in lines] == [True, True], done.stdout + done.stderr


def test_a_dry_run_shows_what_is_set_for_networks_and_gpus(launchers: Launchers) -> None:
    launchers.environment |= {"NCCL_SOCKET_IFNAME": "eth0", "FI_PROVIDER": "efa", "OTHER": "7"}
    launchers.environment["CUDA_VISIBLE_DEVICES"] = "0,1"
    done = launchers.run("-np", "1", "--engine", "local", "--dry-run", "--", "true")
    worker, inherited = done.stdout.splitlines()
    assert worker.startswith("worker 0: ")
    assert {"CUDA_VISIBLE_DEVICES=0,1", "FI_PROVIDER=efa", "NCCL_SOCKET_IFNAME=eth0"} <= set(
        inherited.removeprefix("all: ").split()
    )
    assert "OTHER" not in done.stdout


@pytest.mark.parametrize("engine", ["horovod", "byteps"])
def test_an_engine_that_is_not_installed(launchers: Launchers, engine: str) -> None:
    launchers.stand_in(engine, __init__="raise ImportError('not here')")
    done = launchers.run("-np", "2", "--engine", engine, "--", "true")
    assert done.returncode == 2
    assert done.stderr.startswith(f"ooodist: error: --engine {engine}: it is not installed")
    assert f"ooodist-engines {engine}" in done.stderr


def test_a_temporary_folder_too_long_for_sockets(launchers: Launchers) -> None:
    launchers.stand_in("byteps", __init__="", server="")
    long = launchers.temporary / ("x" * 80)
    long.mkdir()
    launchers.environment["TMPDIR"] = str(long)
    done = launchers.run("-np", "1", "--engine", "byteps", "--", "true")
    assert done.returncode == 2
    assert "set TMPDIR to a shorter one" in done.stderr
    long.rmdir()  # fails if anything is in it


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="these tests run in no environment")
def test_it_finds_the_environment_itself(tmp_path: Path) -> None:
    python_of_system = str(Path(sys.base_prefix) / "bin" / "python3")
    worker = ["--", "python", "-c", "import sys; print(sys.prefix)"]

    def run(environment: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python_of_system, "-E", str(LOCAL), *GIVEN, *worker],
            env={"PATH": "/usr/bin:/bin", "OOODIST_VENV": str(environment)},
            capture_output=True,
            text=True,
            check=False,
        )

    found = run(Path(sys.prefix))
    assert found.stdout == f"[0] {sys.prefix}\n", found.stderr
    missing = run(tmp_path)
    assert missing.returncode == 2
    assert f"has no ooodist, and neither has {tmp_path}; run scripts/quickstart" in missing.stderr


def test_help(launchers: Launchers) -> None:
    done = launchers.run("--help")
    assert done.returncode == 0
    assert "python -m ooodist.launch -np 2 --engine collective -- python -m ooodist" in done.stdout
