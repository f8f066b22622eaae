"""A package adds an engine by an entry point: it is launched, trains, and is planned for."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ooodist
from ooodist.engines import kinds
from tests.jobs import ROOT

CHECKS = ("adam_with_schedule_clipping_and_decay", "several_steps_a_launch")
LAUNCH = ("-m", "ooodist.launch", "-np", "2", "--engine", "star", "--", sys.executable)


def installed(folder: Path, point: str) -> dict[str, str]:
    """The environment in which a package with this entry point is installed."""
    metadata = folder / "star-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: star\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{kinds.GROUP}]\n{point}\n")
    return os.environ | {"PYTHONPATH": f"{ROOT}:{folder}", "TF_CPP_MIN_LOG_LEVEL": "2"}


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def test_an_engine_of_another_package(tmp_path: Path) -> None:
    environment = installed(tmp_path, "star = tests.engines.kinds.star:Star")
    job = run(environment, *LAUNCH, str(ROOT / "tests/job/worker.py"), *CHECKS)
    assert job.returncode == 0, job.stdout[-6000:]
    assert "engine star (OOODIST_ENGINE=star): rank 0 of 2" in job.stdout
    for check in CHECKS:
        assert job.stdout.count(f"passed {check}") >= 1, job.stdout[-6000:]
    costs = ROOT / "expr/planning_at_scale/costs/resnet50.yaml"
    assert costs.is_file()
    plan = run(
        environment,
        *("-m", "ooodist.plan", "--costs", str(costs), "--workers", "8", "--engine", "star"),
        *("--bandwidth", "10Gbit", "--output", str(tmp_path / "plan")),
    )
    assert plan.returncode == 0, plan.stdout[-3000:]
    assert "star" in plan.stdout


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("star = no.such.module:Star", "star = no.such.module:Star of ooodist.engines: ModuleNot"),
        ("star = tests.jobs:ROOT", "TypeError: 'PosixPath' object is not callable"),
        ("moon = tests.engines.kinds.star:Star", "it must be a Kind .* of that name"),
        ("local = ooodist.engines.kinds.local:Local", "there is another engine of that name"),
    ],
)
def test_an_entry_point_that_is_none(
    point: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, point)
    monkeypatch.syspath_prepend(str(tmp_path))
    kinds.kinds.cache_clear()
    try:
        with pytest.raises(kinds.UserError, match=message):
            kinds.kinds()
    finally:
        kinds.kinds.cache_clear()


def test_nothing_asks_for_an_engine_by_name() -> None:
    """But the engines themselves, and what installs their packages."""
    root = Path(ooodist.__file__).parent
    own = ("engines/", "install_engines/", "util/packages.py")
    names = {*kinds.names(), *(way for kind in kinds.kinds().values() for way in kind.by_mpirun)}
    asked = [
        (str(file.relative_to(root)), node.lineno, node.value)
        for file in root.rglob("*.py")
        if not str(file.relative_to(root)).startswith(own)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert asked == []
