"""gRPC is for services alone: a folder is used without it, and a service says what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ooodist.zoo.zoo import Zoo
from tests.fork_server import fast_python
from tests.zoo.starts import network, trained, zoo_of

INSTALL = "install it: pip install 'ooodist[zoo]'"
HIDDEN = """
import sys
sys.modules["grpc"] = None  # as if it was not installed
"""
OLD = """
import sys
import grpc
grpc.__version__ = "1.60.0"
"""
COMMAND = """
import sys
from ooodist.zoo.__main__ import main
code = main(sys.argv[1:])
"""
WARM_START = """
import sys
import ooodist
from tests.zoo.starts import compiled, network
start = ooodist.warm_start(compiled(network()), sys.argv[1], required=True)
assert start.carried == 1.0
code = 0
"""
LOADED = """
print([name for name in ("grpc", "ooodist.zoo.service.remote") if sys.modules.get(name)])
sys.exit(code)
"""


def run(
    program: str, *arguments: object, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty zoo."""
    Zoo(tmp_path / "zoo").close()
    return tmp_path / "zoo"


@pytest.mark.parametrize("before", ["", HIDDEN])
def test_a_folder_is_listed_without_it(folder: Path, before: str) -> None:
    done = run(before + COMMAND + LOADED, "list", "--zoo", folder)
    assert done.returncode == 0, done.stderr
    assert "models: 0" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_model_starts_from_a_folder_without_it(tmp_path: Path) -> None:
    zoo = zoo_of(tmp_path / "zoo", trained(network()))
    done = run(WARM_START + LOADED, zoo, python=fast_python())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["list", "serve"])
def test_a_service_says_what_is_missing(folder: Path, command: str) -> None:
    zoo = folder if command == "serve" else "127.0.0.1:7077"
    done = run(HIDDEN + COMMAND + LOADED, command, "--zoo", zoo)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("ooodist: error: a zoo's service needs the extra zoo (gRPC and proto")
    assert line.endswith(INSTALL)


def test_a_version_that_is_too_old_is_named(folder: Path) -> None:
    done = run(OLD + COMMAND + LOADED, "serve", "--zoo", folder)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "needs the extra zoo" in line
    assert "installed is at version 1.60.0" in line
    assert line.endswith(INSTALL)


def test_a_job_that_needs_a_service_says_what_is_missing(folder: Path) -> None:
    done = run(HIDDEN + WARM_START + LOADED, "127.0.0.1:7077", python=fast_python())
    assert done.returncode != 0
    assert "UserError: warm_start.required is true" in done.stderr
    assert done.stderr.strip().endswith(INSTALL)
