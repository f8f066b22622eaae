"""``parallel.devices``: what is chosen, that all choices train alike, and how a job goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

from ooodist import models
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.parts import Parts
from ooodist.config import job as job_file
from ooodist.data.kinds import load
from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.job.division import check_devices, choose_replicas, divided, with_replicas
from ooodist.pipeline.stages import calls_of
from ooodist.planner.pipeline.layer_costs import LayerCost, Link, ModelCosts
from ooodist.settings.sections import ParallelConfig
from ooodist.util import yaml_dataclass
from tests.pipeline.jobs import run_python

JOB = """\
model: {name: mlp, layers: [256, 256, 256]}
data: {name: digits}
batch: 16
epochs: 1
steps_per_epoch: 4
seed: 7
optimizer: {name: sgd, learning_rate: 0.05}
parallel: {devices: 2, microbatches: 4, schedule: zb_h1}
timeout: 20
report: {tensorboard: false}
"""
WORKER = Path(__file__).with_name("division_worker.py")
WEIGHTS = 8  # of four dense layers


def write_costs(file: Path, names: Iterable[str], ring: float) -> None:
    """Equal costs of the layers of these names, with links between replicas of this rate."""
    layers = tuple(LayerCost(name, 1e-3, 1e-3, 1e-3, exchanged_bytes=1000) for name in names)
    link = Link(seconds_per_byte=ring)
    yaml_dataclass.write_file(ModelCosts(layers, replica_link=link), file)


def names_of_the_job() -> list[str]:
    """Of the layers of its model."""
    config = job_file.loads(JOB)
    data = load(config.data, batch=16, rank=0, size=1, seed=1)
    return [call.name for call in calls_of(models.build(config.model, data))]


def trained(folder: Path, *overrides: str, ends_with: int = 0) -> str:
    """Runs the job on two ranks; returns what it prints."""
    file = folder / "job.yaml"
    file.write_text(JOB)
    sets = [part for override in overrides for part in ("--set", override)]
    out = ["--output", str(folder / "out")]
    job = run_python(2, "-m", "ooodist.train", "--config", file, *out, *sets, seconds=200)
    assert job.returncode == ends_with, job.stdout
    return job.stdout


def weights(folder: Path, epoch: int) -> list[np.ndarray]:
    with Parts(folder / "out" / folders.parts_name(epoch)) as parts:
        return [parts.read(index) for index in range(WEIGHTS)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a job that had replicas, as their sums take no time."""
    folder = tmp_path_factory.mktemp("replicas")
    write_costs(folder / "costs.yaml", names_of_the_job(), ring=0.0)
    text = trained(folder, f"parallel.costs={folder / 'costs.yaml'}")
    assert "parallel.devices 2: chose pipeline 1 x data 2, as predicted the fastest; " in text
    assert "; 2 x 1: " in text
    assert "workers      2 (engine mpi), batch 8 for each pipeline" in text
    assert "pipeline     2 pipelines, each of 1 stage on 1 rank, 2 micro-batches" in text
    return folder


def test_the_job_file_of_the_output_says_what_was_chosen(base: Path) -> None:
    config = job_file.load(base / "out" / "config.yaml")
    chosen = ParallelConfig(
        pipeline=1, data=2, microbatches=2, schedule="zb_h1", costs=str(base / "costs.yaml")
    )
    assert (config.parallel, config.batch) == (chosen, 8)


def test_memory_makes_stages_of_them_and_the_numbers_are_the_same(
    base: Path, tmp_path: Path
) -> None:
    """The layers are measured; the whole model does not fit."""
    text = trained(tmp_path, "parallel.memory_bytes=1200000")
    assert "to divide 2 devices" in text
    assert "chose pipeline 2 x data 1, as predicted the fastest; 2 x 1: " in text
    assert re.search(r"1 x 2 cannot be: .* the memory limit is 1200000: stage 0 lacks", text), text
    assert "workers      2 (engine mpi), batch 16" in text
    for mine, theirs in zip(weights(tmp_path, 1), weights(base, 1), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


def test_a_job_goes_on_divided_as_before(base: Path) -> None:
    """Although the costs would now make stages."""
    write_costs(base / "costs.yaml", names_of_the_job(), ring=1.0)
    costs = f"parallel.costs={base / 'costs.yaml'}"
    text = trained(base, costs, "epochs=2", "checkpoint.resume=true")
    assert "parallel.devices 2: 1 x 2, as before" in text
    assert "resuming after epoch 1" in text
    assert "resuming with" not in text  # nothing of the job is different
    # With other samples an update, it is another job, and must allow that.
    text = trained(base, costs, "batch=32", "epochs=3", "checkpoint.resume=true", ends_with=2)
    assert "chose pipeline 2 x data 1" in text
    assert "is of 2 workers, this job has 1; start 2, or allow it with" in text


def test_too_many_devices_end_the_job_on_all_ranks(tmp_path: Path) -> None:
    text = trained(tmp_path, "parallel.devices=4", ends_with=2)
    assert text.count("parallel.devices is 4, but 2 processes were started, one for each") == 1


def test_a_program(tmp_path: Path) -> None:
    """Its batches are those of all replicas, divided by hand."""
    arguments: list[object] = []
    for ring, replicas in ((0.0, 2), (1.0, 1)):
        file = tmp_path / f"costs-{replicas}.yaml"
        write_costs(file, ["first", "second"], ring)
        arguments += [file, replicas]
    job = run_python(2, WORKER, *arguments, seconds=180)
    assert job.returncode == 0, job.stdout[-4000:]
    assert job.stdout.count("as it should be") == 2


def parallel_of(costs: Path, **settings: object) -> ParallelConfig:
    given = {"devices": 2, "microbatches": 4, "schedule": "1f1b", "costs": str(costs), **settings}
    read: ParallelConfig = yaml_dataclass.read(ParallelConfig, given, "parallel")
    return read


@pytest.mark.parametrize(("ring", "replicas"), [(0.0, 2), (1.0, 1)])
def test_the_fastest_is_chosen(tmp_path: Path, ring: float, replicas: int) -> None:
    file = tmp_path / "costs.yaml"
    write_costs(file, ["first", "second"], ring)
    parallel = parallel_of(file)
    assert choose_replicas(parallel, LocalEngine(), None) == replicas
    chosen = with_replicas(parallel, replicas)
    assert (chosen.devices, chosen.data, chosen.pipeline) == (None, replicas, 2 // replicas)
    assert chosen.microbatches * replicas == 4
    assert chosen.ranks == parallel.ranks == 2


def test_where_nothing_fits_each_way_says_why(tmp_path: Path) -> None:
    file = tmp_path / "costs.yaml"
    write_costs(file, ["first", "second"], 0.0)
    costs = yaml_dataclass.read_file(ModelCosts, file, "costs")
    heavy = replace(costs, layers=tuple(replace(layer, base_bytes=1000) for layer in costs.layers))
    parallel = parallel_of(file, memory_bytes=999)
    with pytest.raises(UserError, match=r"parallel\.devices is 2, which cannot be") as error:
        choose_replicas(parallel, LocalEngine(), heavy)
    for words in ("2 x 1 cannot be: ", "1 x 2 cannot be: ", "raise parallel.memory_bytes"):
        assert words in str(error.value)


def test_a_job_without_the_key_stays_as_it_is() -> None:
    config = replace(job_file.loads(JOB), parallel=ParallelConfig(pipeline=2))

    def measure(_: object) -> ModelCosts:
        raise AssertionError("nothing is to be measured")

    assert divided(config, LocalEngine(), None, measure) is config


@pytest.mark.parametrize(
    ("devices", "size", "message"),
    [(8, 1, "1 process was started, one for each"), (2, 3, "or set parallel.devices to 3")],
)
def test_as_many_processes_as_devices(devices: int, size: int, message: str) -> None:
    check_devices(size, size)
    with pytest.raises(UserError, match=message):
        check_devices(devices, size)


def test_keras_names_layers_anew() -> None:
    """So that the model that is trained has the names of the one that was measured."""
    names = []
    for _ in range(2):
        keras.utils.clear_session()
        names.append(keras.layers.Dense(2).name)
    assert names[0] == names[1]
