"""The sbatch files with real daemons of Slurm: on four hosts, each engine trains one job."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from expr.lab.network import Lab
from tests.jobs import needs_built
from tests.launcher.conftest import networks_of

from .cluster import ROOT, Cluster, needs_slurm

pytestmark = pytest.mark.timing("daemons of four hosts have limits of their own")
JOB = ("--set", "model={name: mlp}", "--set", "epochs=1", "--set", "report.tensorboard=false")
PIPELINE = ("--set", "parallel={pipeline: 2, data: 2, microbatches: 4, schedule: 1f1b}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Four hosts."""
    needs_slurm()
    with Lab(4, "1Gbit") as lab, Cluster(lab) as built:
        yield built
    assert not networks_of(os.getpid())
    assert not built.folder.exists()


def train(cluster: Cluster, script: str, *more: str) -> tuple[str, str]:
    """The end of a job, and its output."""
    file = ROOT / "launch/slurm" / f"{script}.sbatch"
    return cluster.batch(file, *JOB, "--output", str(cluster.folder / script), *more)


@pytest.mark.parametrize("engine", ["collective", "horovod", "byteps"])
def test_engine_trains_on_all_hosts(cluster: Cluster, engine: str) -> None:
    needs_built(engine)
    # A wrong rank of a peer, or each on its own, would be seen here: an exchange waits for all.
    state, output = train(cluster, engine)
    assert state == "COMPLETED:0", output
    assert f"4 (engine {engine}), batch" in output
    assert (cluster.folder / engine / "model.keras").exists()
    assert not list(Path("/dev/shm").glob("BytePS_ShM_20*"))


def test_pipeline_trains_on_all_hosts(cluster: Cluster) -> None:
    pytest.importorskip("mpi4py", reason="run ooodist-engines mpi")
    state, output = train(cluster, "mpi", *PIPELINE)
    assert state == "COMPLETED:0", output
    assert "2 pipelines, each of 2 stages on 2 ranks" in output
    assert (cluster.folder / "mpi" / "model.keras").exists()


def test_each_host_has_a_rank(cluster: Cluster) -> None:
    srun = ["srun", "--nodes=4", "python", "-m", "ooodist.launcher.slurm", "--engine", "collective"]
    shown = "import os; print('rank', os.environ['OOODIST_RANK'])"
    logs = cluster.folder / "logs"
    done = cluster.run(*srun, "--log-dir", str(logs), "--", "python", "-c", shown, seconds=30)
    assert done.returncode == 0, done.stdout
    assert {f"[{rank}] rank {rank}" for rank in range(4)} <= set(done.stdout.splitlines())
    for rank in range(4):
        assert (logs / f"{rank}.log").read_text() == f"rank {rank}\n"


def test_srun_without_the_launcher_is_no_training_of_each_process_alone(cluster: Cluster) -> None:
    """What tells them is Slurm's own variables; the shell of a batch script is one process."""
    begun = "import ooodist; ooodist.init(); print('alone,', ooodist.size(), 'worker')"
    done = cluster.run("srun", "--nodes=4", "python", "-c", begun, seconds=60)
    assert done.returncode != 0
    assert "alone," not in done.stdout
    assert done.stdout.count("this process is one of 4 that were started by srun") == 4, done.stdout
    script = cluster.folder / "begun.sbatch"
    script.write_text(f'#!/bin/sh\npython -c "{begun}"\n', "utf-8")
    state, output = cluster.batch(script)
    assert state == "COMPLETED:0", output
    assert "alone, 1 worker" in output


def test_mistake_ends_the_job_on_all_hosts(cluster: Cluster) -> None:
    srun = ["srun", "--nodes=2", "--kill-on-bad-exit=1", "python", "-m", "ooodist.launcher.slurm"]
    begun = (
        "import os, sys, time; os.environ['OOODIST_RANK'] == '1' and sys.exit(3); time.sleep(60)"
    )
    done = cluster.run(*srun, "--engine", "collective", "--", "python", "-c", begun, seconds=30)
    # srun's code is the highest of all tasks; those that it ends have 143.
    assert done.returncode in (3, 143), done.stdout
    assert "worker 1 exited with code 3" in done.stdout
    wrong = cluster.run(*srun, "--engine", "collective", "--", "no-such-program", seconds=30)
    assert wrong.returncode in (2, 143), wrong.stdout
    assert "command not found: no-such-program" in wrong.stdout
