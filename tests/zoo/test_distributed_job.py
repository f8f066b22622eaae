"""Jobs with ``warm_start``: on two workers, from a service, as a pipeline."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import pytest

from ooodist.checkpoint import folder as folders
from ooodist.zoo.service.server import Service, serve
from ooodist.zoo.zoo import Row, Zoo
from tests.fork_server import fast_python
from tests.jobs import ROOT
from tests.pipeline.jobs import VARIABLES, run_python
from tests.zoo.starts import free_port

JOB = """\
model: {name: mlp, layers: [LAYERS]}
data: {name: digits}
batch: 64
epochs: 1
steps_per_epoch: 10
seed: 7
optimizer: {name: adam, learning_rate: 0.003}
report: {tensorboard: false, csv: false}
"""
PIPELINE = "parallel: {pipeline: 2, microbatches: 4, schedule: zb_h1}\ntimeout: 20\n"
PARENT, CHILD = "24", "40, 40"
TOKEN = "anna's-token-0123"
ERROR_CODE = 2
SECONDS = 200


@dataclass(frozen=True)
class Ran:
    """A job that has ended: its output folder, and all that was printed."""

    code: int
    folder: Path
    text: str

    @property
    def lines(self) -> list[str]:
        """Of the log of warm starts, without what the launcher puts before them."""
        return re.findall(r"warm start: .*", self.text)


def run(folder: Path, layers: str, more: str, workers: int = 1) -> Ran:
    """More: lines of the job file."""
    folder.mkdir(parents=True)
    file = folder / "job.yaml"
    file.write_text(JOB.replace("LAYERS", layers) + more)
    command = ["-m", "ooodist.train", "--config", str(file), "--output", str(folder)]
    if "parallel" in more:
        job = run_python(workers, *command, seconds=SECONDS)
        return Ran(job.returncode, folder, job.stdout)
    launcher = [
        sys.executable,
        "launch/local.py",
        "-np",
        str(workers),
        "--engine",
        "collective",
        "--share-network",  # with the zoo's service
        "--",
    ]
    job = subprocess.run(
        [*(launcher if workers > 1 else []), fast_python(), *command],
        cwd=ROOT,
        env=os.environ | VARIABLES,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Ran(job.returncode, folder, job.stdout)


def rows_of(zoo: Path) -> dict[str, Row]:
    with Zoo(zoo) as models:
        return {row.id: row for row in models.list()}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the model of a job that has found it empty."""
    folder = tmp_path_factory.mktemp("warm_start")
    zoo = folder / "zoo"
    zoo.mkdir()
    job = run(folder / "cold", PARENT, f"warm_start: {{zoo: {zoo}, tags: [a]}}\n")
    assert job.code == 0, job.text[-4000:]
    assert job.lines == [
        f"warm start: the training starts cold: {zoo} has no model of task classification, dataset "
        "digits, tags a that is similar"
    ]
    [row] = rows_of(zoo).values()
    accuracy = re.search(r"validation +.*accuracy ([0-9.]+)", job.text)
    assert accuracy is not None
    assert row.meta.metrics["accuracy"] == pytest.approx(float(accuracy[1]), abs=1e-4)
    assert (row.meta.task, row.meta.dataset) == ("classification", "digits")
    assert row.meta.tags == ("a",)
    return zoo


@contextmanager
def served(zoo: Path) -> Iterator[Service]:
    with Zoo(zoo) as models, serve(models, "127.0.0.1:0", tokens={TOKEN: "anna"}) as service:
        yield service


def test_two_workers_start_from_a_folder(zoo: Path, tmp_path: Path) -> None:
    [parent] = rows_of(zoo)
    mine = tmp_path / "zoo"
    shutil.copytree(zoo, mine)
    job = run(tmp_path / "out", CHILD, f"warm_start: {{zoo: {mine}, tags: [a]}}\n", workers=2)
    assert job.code == 0, job.text[-4000:]
    line, lower_rate = job.lines  # of rank 0 alone
    assert "the learning rate begins" in lower_rate
    assert f"starts from mlp ({parent}), score " in line
    assert f"warm start   {parent}, score " in job.text
    [child] = rows_of(mine).keys() - {parent}
    assert f"registered   {child} in {mine}" in job.text
    assert rows_of(mine)[child].meta.parent == parent
    state = folders.latest(job.folder)[1]
    assert state.size == 2
    assert state.warm_start is not None
    assert state.warm_start["parent"] == parent


def test_two_workers_start_from_a_service(zoo: Path, tmp_path: Path) -> None:
    [parent] = rows_of(zoo)
    mine = tmp_path / "zoo"
    shutil.copytree(zoo, mine)
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN + "\n")
    with served(mine) as service:
        asked = f"warm_start: {{zoo: '{service.address}', token_file: {token}, required: true}}\n"
        job = run(tmp_path / "out", CHILD, asked, workers=2)
    assert job.code == 0, job.text[-4000:]
    assert f"warm start   {parent}, score " in job.text
    [child] = rows_of(mine).keys() - {parent}
    assert f"registered   {child} in {service.address}" in job.text
    assert TOKEN not in job.text
    assert TOKEN not in (job.folder / "config.yaml").read_text()


def test_a_service_that_is_not_there(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    job = run(
        tmp_path / "out", PARENT, f"warm_start: {{zoo: '{address}', timeout: 5}}\n", workers=2
    )
    assert job.code == 0, job.text[-4000:]
    cold, registered = job.lines
    assert cold.startswith(f"warm start: the training starts cold: the zoo at {address} cannot be ")
    assert registered.startswith("warm start: the trained model was not added to the zoo ")
    assert "warm start   none: it started cold" in job.text
    assert "Traceback" not in job.text
    assert (job.folder / "model.keras").exists()


def test_a_service_that_never_answers_while_others_wait(tmp_path: Path) -> None:
    """For longer than a worker may be silent."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
        settings = f"{{zoo: '127.0.0.1:{port}', timeout: 9, register: false}}"
        more = f"timeout: 7\nwarm_start: {settings}\n"
        job = run(tmp_path / "out", PARENT, more, workers=2)
    assert job.code == 0, job.text[-4000:]
    [line] = job.lines
    assert line.startswith(f"warm start: the training starts cold: the zoo at 127.0.0.1:{port} ")


@pytest.mark.parametrize("way", ["workers", "pipeline"])
def test_what_is_required_ends_all_ranks_with_one_message(way: str, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    more = f"warm_start: {{zoo: '{address}', timeout: 5, required: true}}\n"
    job = run(tmp_path / "out", CHILD, more + PIPELINE * (way == "pipeline"), workers=2)
    assert job.code == ERROR_CODE, job.text[-4000:]
    errors = re.findall(r"ooodist: error: .*", job.text)
    assert errors
    assert len(set(errors)) == 1, errors
    assert "warm_start.required is true, but there is no warm start from " + address in errors[0]
    assert "cannot be reached" in errors[0]
    assert "Traceback" not in job.text
    assert not (job.folder / "model.keras").exists()


def test_a_pipeline_is_as_one_process(zoo: Path, tmp_path: Path) -> None:
    """Warm starts of both, and the same steps behind them."""
    [parent] = rows_of(zoo)
    warm = f"warm_start: {{zoo: {zoo}, register: false}}\n"
    found = []
    for workers in (1, 2):
        more = warm + PIPELINE * (workers == 2)
        job = run(tmp_path / f"{workers}", CHILD, more, workers=workers)
        assert job.code == 0, job.text[-4000:]
        line, _ = job.lines
        assert f"starts from mlp ({parent})" in line
        found.append(keras.models.load_model(job.folder / "model.keras"))
    one, pipeline = found
    for mine, its in zip(pipeline.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-5 * np.abs(its).max())
    assert int(pipeline.optimizer.iterations) == 10
    assert float(pipeline.optimizer.learning_rate) == float(one.optimizer.learning_rate)


def test_a_pipeline_registers_the_whole_model(tmp_path: Path) -> None:
    """Each rank has trained only its own half."""
    zoo = tmp_path / "zoo"
    job = run(tmp_path / "out", CHILD, f"warm_start: {{zoo: {zoo}}}\n{PIPELINE}", workers=2)
    assert job.code == 0, job.text[-4000:]
    [row] = rows_of(zoo).values()
    accuracy = re.search(r"validation +.*accuracy ([0-9.]+)", job.text)
    assert accuracy is not None
    assert row.meta.metrics["accuracy"] == pytest.approx(float(accuracy[1]), abs=1e-4)
    with Zoo(zoo) as models:
        _, values = models.fetch(row.id)
    trained = keras.models.load_model(job.folder / "model.keras").get_weights()
    for value, expected in zip(values.values(), trained, strict=True):
        np.testing.assert_array_equal(value, expected)


def wait_for(address: str, service: subprocess.Popen[str]) -> None:
    """Until somebody listens there."""
    host, _, port = address.partition(":")
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        assert service.poll() is None, service.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.1)


def test_from_a_service_on_the_command_line(zoo: Path, tmp_path: Path) -> None:
    """As people start it: ``python -m ooodist.zoo serve``."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f'anna: "{TOKEN}"\n')
    tokens.chmod(0o600)
    address = f"127.0.0.1:{free_port()}"
    service = subprocess.Popen(
        [
            *(fast_python(), "-m", "ooodist.zoo", "serve", "--zoo", str(zoo)),
            *("--address", address, "--tokens", str(tokens)),
        ],
        cwd=ROOT,
        env=os.environ | VARIABLES,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(address, service)
        (tmp_path / "token").touch(0o600)
        (tmp_path / "token").write_text(TOKEN)
        more = (
            f"warm_start: {{zoo: '{address}', token_file: {tmp_path / 'token'}, required: true, "
            "register: false}\n"
        )
        job = run(tmp_path / "out", CHILD, more)
    finally:
        service.terminate()
        printed, _ = service.communicate(timeout=30)
    assert job.code == 0, job.text[-4000:] + printed
    assert "warm start   mlp-" in job.text
