"""What programs show of the log, if they configure none: real programs, their lines counted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fork_server import fast_python
from tests.jobs import ROOT

MODEL = """
import keras, numpy as np
def build():
    m = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    m.compile("sgd", "mse")
    return m
x, y = np.ones((64, 8), "float32"), np.ones((64, 1), "float32")
"""
DISTRIBUTED = f"""
import ooodist; ooodist.init()
{MODEL}
model = ooodist.distribute(build())
class Own(keras.callbacks.Callback):
    pass
model.fit(x, y, batch_size=16, callbacks=[Own()], verbose=0)
"""
PIPELINED = f"""
import ooodist; ooodist.init()
{MODEL}
model = ooodist.pipelined(build, pipeline=2, microbatches=2, schedule="1f1b")
model.fit(x, y, batch_size=16, verbose=0)
"""
# On processors with AVX-512 VNNI, TensorFlow 2.21 writes these whatever TF_CPP_MIN_LOG_LEVEL says.
AT_ITS_IMPORT = re.compile(r"All log messages before absl::Init|oneDNN custom operations are on")
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
LOCAL = [sys.executable, str(ROOT / "launch/local.py"), "-np", "2", "--engine", "collective", "--"]


def run(command: list[str], folder: Path) -> list[str]:
    """Returns the lines that a command writes to standard error."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPP")}
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("launcher", "program", "lines"),
    [
        (LOCAL, DISTRIBUTED, [r"\[0\] ooodist: engine collective", r"\[0\] ooodist: fit: .*Own"]),
        (MPIRUN, PIPELINED, ["ooodist: engine mpi", "ooodist: pipeline"]),
    ],
    ids=["local, distribute", "mpirun, pipelined"],
)
def test_rank_0_shows_the_log_and_tensorflow_nothing(
    launcher: list[str], program: str, lines: list[str], tmp_path: Path
) -> None:
    if launcher is MPIRUN:
        pytest.importorskip("mpi4py")
        program = program.replace("init()", 'init("mpi")')
        if shutil.which("mpirun") is None:
            pytest.skip("there is no mpirun: run ooodist-engines mpi")
    (tmp_path / "program.py").write_text(program)
    # The real Python, as TensorFlow writes most of its lines when it is imported.
    said = run([*launcher, sys.executable, "program.py"], tmp_path)
    said = [line for line in said if not line.startswith("[launch]")]
    said = [line for line in said if not AT_ITS_IMPORT.search(line)]
    assert all("ooodist: " in line for line in said), said
    assert len(set(said)) == len(said), said  # one rank, once
    for line in lines:
        assert any(re.match(line, one) for one in said), said


def test_a_warm_start_without_an_engine_shows_the_log(tmp_path: Path) -> None:
    program = f"import ooodist\n{MODEL}\nooodist.warm_start(build(), 'zoo')\n"
    (tmp_path / "zoo").mkdir()
    (tmp_path / "program.py").write_text(program + "ooodist.init()\n")
    said = run([fast_python(), "program.py"], tmp_path)
    assert [line.split(":")[:2] for line in said] == [
        ["ooodist", " warm start"],
        ["ooodist", " engine local (no launcher, such as ooodist-launch, has set its variables)"],
    ]


SHOW = """
import logging
from ooodist.util import log
logger = logging.getLogger("ooodist")
def show(rank=0):
    log.show(rank)
    log.show(rank)
def say():
    logger.debug("debug"); logger.info("info"); logger.warning("warning")
"""


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("show(); say()", ["ooodist: info", "ooodist: warning"]),
        ("show(1); say()", ["ooodist: warning"]),
        ("logging.basicConfig(format='my %(message)s'); show(); say()", ["my warning"]),
        ("show(); logging.basicConfig(format='my %(message)s'); say()", ["my warning"]),
        (
            "show(); logger.info('before'); logging.basicConfig(format='my %(message)s', level=20)"
            "; say()",
            ["ooodist: before", "my info", "my warning"],
        ),
        ("show(); logger.addHandler(logging.NullHandler()); say()", []),
        (
            "show(); logger.setLevel(logging.INFO); logger.addHandler(logging.StreamHandler())"
            "; say()",
            ["info", "warning"],
        ),
        ("logger.setLevel(logging.WARNING); show(); say()", ["ooodist: warning"]),
        ("show(); logger.setLevel(logging.ERROR); say()", []),
        ("logging.root.setLevel(logging.ERROR); show(); say()", []),
        ("show(); logging.root.setLevel(logging.ERROR); say()", []),
    ],
)
def test_a_configuration_of_the_users_wins(program: str, shown: list[str], tmp_path: Path) -> None:
    assert run([sys.executable, "-c", SHOW + program], tmp_path) == shown
