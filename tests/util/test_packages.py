"""Packages: several names, quick imports of TensorFlow, and what is said where it is absent."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ooodist
from ooodist.util.packages import importing_tensorflow, version
from tests import environments


def test_it_goes_on_afterwards() -> None:
    with importing_tensorflow():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_if_the_import_fails() -> None:
    with pytest.raises(ImportError), importing_tensorflow():
        importlib.import_module("ooodist.none")
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_so() -> None:
    gc.disable()
    try:
        with importing_tensorflow():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all packages of this one but TensorFlow and what comes with it."""
    absent = ("tensorflow", "keras", "ml_dtypes", "ooodist", "__editable__")
    folder = tmp_path_factory.mktemp("bare")
    python = environments.make(folder, Path(sys.executable), without=absent)
    (environments.packages_of(python) / "ooodist").symlink_to(Path(ooodist.__file__).parent)
    return python


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )


PROGRAMS = {
    "a script": ["script.py"],
    "a script that imports a name": ["-c", "from ooodist import distribute"],
    "train": ["-m", "ooodist.train"],
    "launch": ["-m", "ooodist.launch", "-np", "2", "script.py"],
    "plan": ["-m", "ooodist.plan", "--workers", "4", "--bandwidth", "1Gbit"],
    "zoo": ["-m", "ooodist.zoo", "add", "model.keras", "--zoo", "zoo"],
    "checkpoint": ["-m", "ooodist.checkpoint", "split", "model.keras", "new"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_tensorflow_one_message_says_what_to_install(
    name: str, bare_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text("import ooodist\nooodist.init()\n", "utf-8")
    (tmp_path / "model.keras").touch()
    done = run(bare_python, tmp_path, *PROGRAMS[name])
    assert done.returncode == (1 if name.startswith("a ") else 2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("ooodist: error: TensorFlow is not installed in")
    assert '-m pip install "ooodist[cpu]", or "ooodist[gpu]"' in line


def test_other_programs_need_no_tensorflow(bare_python: Path, tmp_path: Path) -> None:
    done = run(bare_python, tmp_path, "-m", "ooodist.launch", "-np", "1", "--", "echo", "started")
    assert "[0] started" in done.stdout
    done = run(bare_python, tmp_path, "-m", "ooodist.checkpoint", "--help")
    assert done.returncode == 0


def test_other_errors_of_a_script_keep_their_traceback(bare_python: Path, tmp_path: Path) -> None:
    script = "import ooodist\ntry:\n  ooodist.init()\nexcept ooodist.UserError:\n  pass\n1 / 0"
    done = run(bare_python, tmp_path, "-c", script)
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_wheel_of_our_own_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("ooodist_horovod", "0.1.0.post221"), ("tensorflow_cpu", "2.21.0")):
        folder = tmp_path / f"{name}-{number}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {number}\n", "utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert version("horovod") == "0.1.0.post221"
    assert version("tensorflow") == "2.21.0"
    assert version("byteps") == ""
