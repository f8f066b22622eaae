"""What the kernel says of a process's memory: a real process, real limits, and files as it has."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ooodist.util import process_memory
from ooodist.util.process_memory import Limit, lowest_limit, resident_bytes

SIZE = 64 << 20


def test_what_is_written_to_is_resident() -> None:
    """In a process of its own: this one would take what others left free in it."""
    program = (
        "import numpy as np; from ooodist.util.process_memory import resident_bytes as resident\n"
        f"before = resident(); held = np.ones({SIZE}, np.uint8); print(resident() - before)"
    )
    added = int(subprocess.check_output([sys.executable, "-c", program]))
    assert 0.9 * SIZE <= added < 1.1 * SIZE


def test_elsewhere_nobody_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_memory, "STATM", tmp_path / "missing")
    assert resident_bytes() is None


@pytest.mark.parametrize(("name", "number"), process_memory.RESOURCES.items())
def test_the_lower_limit_counts(name: str, number: int) -> None:
    """In a process of its own: a limit can be lowered only."""
    program = (
        "import resource, ooodist.util.process_memory as memory\n"
        f"resource.setrlimit({int(number)}, (3 << 30, resource.RLIM_INFINITY))\n"
        "print(*memory.lowest_limit())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [name, str(3 << 30)]


def groups(folder: Path, limits: dict[str, str]) -> None:
    for name, text in limits.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "memory.max").write_text(text)


def test_a_group_around_it_may_have_the_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    groups(tmp_path, {"job": "1000000\n", "job/step": "max\n"})
    (tmp_path / "own").write_text("0::/job/step\n")
    monkeypatch.setattr(process_memory, "MOUNTED", tmp_path)
    monkeypatch.setattr(process_memory, "GROUPS", tmp_path / "own")
    assert lowest_limit() == Limit(f"memory.max of the control group {tmp_path / 'job'}", 1_000_000)


@pytest.mark.parametrize("line", ["0::/job", "4:memory:/job", ""])
def test_without_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str) -> None:
    groups(tmp_path, {"job": "max"})
    (tmp_path / "own").write_text(line)
    monkeypatch.setattr(process_memory, "MOUNTED", tmp_path)
    monkeypatch.setattr(process_memory, "GROUPS", tmp_path / "own")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert lowest_limit() is None


def test_where_there_are_no_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_memory, "GROUPS", tmp_path / "missing")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5, resource.RLIM_INFINITY))
    assert lowest_limit() == Limit("RLIMIT_AS", 5)
