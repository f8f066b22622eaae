"""Code for GPUs is packed as CUDA expects it (ooodist/install_engines/fatbinary.py)."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ooodist.install_engines import fatbinary

SCRIPT = Path(fatbinary.__file__)
PTX = ".version 7.0\n.target sm_{0}\n.address_size 64\n.visible .entry empty()\n{{\n\tret;\n}}\n"


def library() -> str:
    """The path of the wheel's library."""
    spec = importlib.util.find_spec("nvidia.nvfatbin")
    assert spec
    assert spec.submodule_search_locations
    (file,) = Path(spec.submodule_search_locations[0]).glob("lib/libnvfatbin.so.*")
    return str(file)


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=os.environ | {"NVFATBIN": library()},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_images_are_packed_whole_and_listed(tmp_path: Path) -> None:
    images = []
    for number in (60, 90):
        file = tmp_path / f"{number}.ptx"
        file.write_text(PTX.format(number))
        images.append(f"--image=profile=compute_{number},file={file}")
    done = call("-64", "--create", str(tmp_path / "out"), *images)
    assert done.returncode == 0, done.stderr
    packed = (tmp_path / "out").read_bytes()
    for number in (60, 90):  # not compressed, so that old drivers can read it
        assert f".target sm_{number}\n.address_size 64\n.visible .entry empty()".encode() in packed
    # As a linker puts it into a library.
    (tmp_path / "library").write_bytes(b"before" + packed + b"after")
    assert call("--list", str(tmp_path / "library")).stdout == (
        "code for GPUs: compute_60 compute_90\n"
    )


def test_what_is_no_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no code")
    done = call(
        "-64", "--create", str(tmp_path / "out"), f"--image=profile=sm_90,file={tmp_path / 'text'}"
    )
    assert done.returncode != 0
    assert "nvFatbinAddCubin" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [[], ["-64", "--create", "out"]])
def test_nothing_to_do(arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.returncode == 2
    assert "give --create and --image, or --list" in done.stderr
