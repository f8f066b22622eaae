"""What scripts/install_engines.sh says when it cannot do its work. Nothing is built here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install_engines.sh"


def install(*arguments: str, path: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PATH": path,
        "OOODIST_VENV": sys.prefix,
        "OOODIST_WHEEL_CACHE": str(cache),
    }
    return subprocess.run(
        ["/bin/bash", str(SCRIPT), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A folder with all programs of this machine but compilers and apt-get."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in Path("/usr/bin").iterdir():
        if not program.name.startswith(("g++", "cmake", "apt-get")):
            (folder / program.name).symlink_to(program)
    return str(folder)


def test_names_what_is_missing_and_where_from(bare_path: str, tmp_path: Path) -> None:
    done = install("horovod", path=bare_path, cache=tmp_path / "cache")
    assert done.returncode == 1
    line, end = done.stderr.splitlines()
    assert line.startswith("horovod: missing: g++ cmake; run 'apt-get install g++ cmake' as root")
    assert end == "install_engines.sh: error: not installed: horovod"


def test_unknown_engine() -> None:
    done = install("horovot", path=os.environ["PATH"], cache=Path("/nonexistent"))
    assert done.returncode == 2
    assert "unknown engine 'horovot'" in done.stderr


def test_help_needs_nothing() -> None:
    done = install("--help", path=os.environ["PATH"], cache=Path("/nonexistent"))
    assert done.returncode == 0
    assert "OOODIST_WHEEL_CACHE" in done.stdout


def test_cache_that_cannot_be_written() -> None:
    done = install("mpi", path=os.environ["PATH"], cache=Path("/proc/nonexistent"))
    assert done.returncode == 1
    assert "cannot write to /proc/nonexistent" in done.stderr


def test_nccl_needs_a_tensorflow_for_gpus(tmp_path: Path) -> None:
    import tensorflow as tf

    if tf.test.is_built_with_cuda():
        pytest.skip("this TensorFlow is for GPUs")
    done = install("--gpu", "horovod", path=os.environ["PATH"], cache=tmp_path)
    assert done.returncode == 1
    assert "--gpu, but there is no TensorFlow for GPUs in" in done.stderr
    assert "[gpu]', then this again" in done.stderr
