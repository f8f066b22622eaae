"""The job of scripts/quickstart.sh, on two real workers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.jobs import ROOT


def test_two_workers_learn_the_digits_and_say_where_everything_is(tmp_path: Path) -> None:
    train = ["-m", "ooodist.train", "--config", str(ROOT / "expr/quickstart/config.yaml")]
    launcher = [sys.executable, str(ROOT / "launch/local.py"), "-np", "2", "--engine", "collective"]
    job = subprocess.run(
        [*launcher, "--", sys.executable, *train, "--output", str(tmp_path / "run")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert job.returncode == 0, job.stdout[-4000:]
    said = dict(re.findall(r"^\[0\] (\w[\w ]*?)  +(.*)$", job.stdout, re.MULTILINE))
    accuracy = re.match(r"accuracy ([\d.]+)", said["validation"])
    assert accuracy is not None
    assert float(accuracy[1]) > 0.97
    assert said["trained"].startswith("resnet20")
    assert re.match(r"[\d.]+ ms a step", said["speed"])
    for what in ("checkpoint", "tensorboard", "trace"):
        assert Path(said[what].split()[0]).exists(), said[what]
    assert "[1] trained" not in job.stdout  # rank 0 alone reports
