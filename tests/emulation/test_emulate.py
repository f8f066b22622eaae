"""Emulated devices: waits end in time, steps take as long as simulated, mistakes end all ranks."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ooodist import train
from ooodist.emulation.command import text
from ooodist.emulation.emulate import (
    EmulatedBoundary,
    EmulatedWork,
    stretched,
    summarize,
    wait_until,
)
from ooodist.planner.pipeline.actions import COMPUTE_KINDS, Kind, Schedule
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost
from ooodist.planner.pipeline.dependencies import with_transfers
from ooodist.planner.pipeline.simulate import Run, simulate_pipeline
from tests.fork_server import fast_python
from tests.jobs import ROOT
from tests.pipeline.jobs import run_mpi
from tests.planner.pipelines import pipelines

WORKER = Path(__file__).with_name("worker.py")
ROUNDS = 50  # the first is enough where nothing else runs


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What else runs on this machine waits for us, where that is allowed; and ranks may go where a
    core is free."""
    monkeypatch.setenv("OMPI_MCA_hwloc_base_binding_policy", "none")
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    yield
    os.setpriority(os.PRIO_PROCESS, 0, before)


@pytest.mark.alone
@pytest.mark.usefixtures("undisturbed")
def test_waits_end_in_time_and_take_no_core() -> None:
    late = []  # of each round
    for _ in range(ROUNDS):
        cpu, begin = time.process_time(), time.perf_counter()
        of_waits = [lateness_of_a_wait(10e-3) for _ in range(20)]
        share = (time.process_time() - cpu) / (time.perf_counter() - begin)
        assert min(of_waits) >= 0
        assert share < 0.1
        late.append(statistics.median(of_waits))
        if late[-1] < 0.1e-3:
            break
    assert min(late) < 0.1e-3


def lateness_of_a_wait(seconds: float) -> float:
    deadline = time.perf_counter() + seconds
    wait_until(deadline)
    return time.perf_counter() - deadline


def test_a_wait_for_the_past_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"sleeps {seconds} s"))
    wait_until(time.perf_counter() - 1)


@pytest.mark.alone
@pytest.mark.usefixtures("undisturbed")
def test_work_takes_its_seconds() -> None:
    work = EmulatedWork(StageCost(forward=0.02, input_gradient=0.03, weight_gradient=0.01))
    for asked, do in (
        (0.02, lambda: work.forward(0, ())),
        (0.03, lambda: work.input_gradient(0, ())),
        (0.01, lambda: work.weight_gradient(0)),
    ):
        times = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            do()
            times.append(time.perf_counter() - begin)
            if times[-1] < asked + 0.002:
                break
        assert asked <= min(times) < asked + 0.002


def test_messages_have_their_size_and_their_link() -> None:
    before, behind = StageCost(sent_bytes=1000, send_seconds=0.2), StageCost(send_back_seconds=0.3)
    boundary = EmulatedBoundary(before, behind)
    assert (boundary.link_seconds(Kind.F), boundary.link_seconds(Kind.I)) == (0.2, 0.3)
    for kind in (Kind.F, Kind.I):
        (message,) = boundary.pack(kind, ())
        (place,), (other,) = boundary.receive_buffers(kind), boundary.receive_buffers(kind)
        assert message.nbytes == place.nbytes == other.nbytes == 1000
        assert not np.shares_memory(place, other)  # both may be on their way
        boundary.unpack(kind, [place])
        (again,) = boundary.receive_buffers(kind)
        assert again is place
        assert not np.shares_memory(again, other)
        boundary.unpack(kind, [again, other])


def recorded_at_random(
    schedule: Schedule, costs: PipelineCosts, seed: int
) -> tuple[list[np.ndarray], list[float]]:
    """The times of some steps of each rank; and what each F, I and W took over its costs, with the
    transfers before it. In eighths, of which sums are exact."""
    chance = np.random.default_rng(seed)
    steps = chance.integers(1, 4)
    times, overheads = [], []
    for actions in with_transfers(schedule).actions:
        of_rank = np.zeros((steps, len(actions) + 1, 3))
        for step in range(steps):
            now = over = 0.0
            for number, action in enumerate(actions):
                waited, more = chance.integers(0, 5, 2) / 8
                over += more
                end = now + more + waited
                if action.kind in COMPUTE_KINDS:
                    waited, end = 0.0, now + more + costs.stages[action.stage].seconds(action.kind)
                    overheads.append(over)
                    over = 0.0
                of_rank[step, number] = now, end, waited
                now = end
            of_rank[step, -1, 0] = now
        times.append(of_rank)
    return times, overheads


@given(pipelines(), st.integers(0, 1000))
def test_what_was_recorded_is_told_apart(
    pipeline: tuple[Schedule, PipelineCosts], seed: int
) -> None:
    schedule, costs = pipeline
    times, overheads = recorded_at_random(schedule, costs, seed)
    result = summarize(schedule, costs, times)
    assert result.simulated == simulate_pipeline(schedule, costs)
    assert result.overhead == pytest.approx(statistics.median(overheads))
    ends = [max(of_rank[step, -1, 0] for of_rank in times) for step in range(len(times[0]))]
    assert result.seconds == tuple(ends)
    median = sorted(ends)[len(ends) // 2]
    assert result.measured.runs in [
        runs_of(schedule, times, step) for step, end in enumerate(ends) if end == median
    ]


def runs_of(
    schedule: Schedule, times: Sequence[np.ndarray], step: int
) -> tuple[tuple[Run, ...], ...]:
    """Of F, I and W alone."""
    return tuple(
        tuple(
            Run(action, start, end)
            for action, (start, end, _) in zip(actions, of_rank[step], strict=False)
            if action.kind in COMPUTE_KINDS
        )
        for actions, of_rank in zip(with_transfers(schedule).actions, times, strict=True)
    )


@given(pipelines(), st.integers(0, 64))
def test_stretched_costs_take_so_much_longer(
    pipeline: tuple[Schedule, PipelineCosts], factor: int
) -> None:
    schedule, costs = pipeline
    before, after = (
        simulate_pipeline(schedule, each) for each in (costs, stretched(costs, factor))
    )
    assert after.step_seconds == factor * before.step_seconds
    assert after.busy == tuple(factor * busy for busy in before.busy)
    assert after.peak_bytes == before.peak_bytes


@given(pipelines(), st.floats(0.5, 2))
def test_a_simulated_step_has_no_error(
    pipeline: tuple[Schedule, PipelineCosts], slower: float
) -> None:
    schedule, costs = pipeline
    assume(simulate_pipeline(schedule, costs).makespan > 0)
    result = summarize(schedule, costs, recorded(schedule, costs, slower))
    step = result.simulated.step_seconds
    assert result.median == pytest.approx(slower * step)
    assert result.error == pytest.approx(1 / slower - 1)
    assert result.measured.bubble == pytest.approx(result.simulated.bubble)
    table = text(result, factor=4)
    for wanted in (
        f"simulated step           {step * 250:.2f} ms",
        f"measured step            {result.median * 250:.2f} ms",
        f"measured bubble          {result.measured.bubble:.1%}",
    ):
        assert wanted in table


def recorded(schedule: Schedule, costs: PipelineCosts, slower: float) -> list[np.ndarray]:
    """The simulated step as if it had been measured on something slower."""
    timeline = simulate_pipeline(schedule, costs)
    times = []
    for rank, actions in enumerate(with_transfers(schedule).actions):
        runs = {run.action: run for run in timeline.runs[rank]}
        lines, now = [], 0.0
        for action in actions:
            begin, end = now, now
            if action in runs:
                begin, end = runs[action].start, runs[action].end
            lines.append((slower * begin, slower * end, 0.0))
            now = end
        end = timeline.update_starts[rank] + timeline.updates[rank]
        lines.append((slower * end, 0.0, 0.0))
        times.append(np.array([lines]))
    return times


@pytest.mark.alone
@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(
    ("ranks", "microbatches", "schedules"),
    [
        (2, 5, ["gpipe", "1f1b", "interleaved", "zb_h1"]),
        (4, 6, ["1f1b", "zb_v", "modulo", "zb_h2"]),
        (4, 2, ["zb_h1"]),  # fewer micro-batches than ranks
    ],
)
def test_steps_take_as_long_as_simulated(
    ranks: int, microbatches: int, schedules: list[str]
) -> None:
    """But for what a busy machine adds: see ``lateness.py``, and ``measure`` of the worker."""
    job = run_mpi(ranks, WORKER, "measure", microbatches, *schedules, seconds=200)
    assert job.returncode == 0, job.stdout[-4000:]
    for name in schedules:
        assert f"{name} is as simulated" in job.stdout
    assert ("a period of " in job.stdout) == ("zb_h2" in schedules)


def write_job(
    folder: Path, parallel: str, layers: int = 4, forward: float = 0.01, timeout: int = 60
) -> list[str]:
    """Files of a job and of costs; returns the options that name them."""
    layer = (
        f"forward: {forward}, input_gradient: 0.01, weight_gradient: 0.01, "
        "base_bytes: 9, sent_bytes: 1000"
    )
    (folder / "job.yaml").write_text(
        f"model: {{name: none_such}}\nparallel: {parallel}\ntimeout: {timeout}\n",
        encoding="utf-8",
    )
    lines = [f"- {{name: layer_{number}, {layer}}}" for number in range(layers)]
    (folder / "costs.yaml").write_text("\n".join(["layers:", *lines]), encoding="utf-8")
    return ["--config", str(folder / "job.yaml"), "--emulate", str(folder / "costs.yaml")]


def test_the_program_prints_what_it_measured(tmp_path: Path) -> None:
    """With a model that there is not: only ``parallel`` counts."""
    options = write_job(tmp_path, "{pipeline: 2, microbatches: 4, schedule: 1f1b}")
    job = run_mpi(2, WORKER, "program", *options, python=sys.executable)
    assert job.returncode == 0, job.stdout[-4000:]
    assert job.stdout.count("imported: []") == 2
    assert job.stdout.count("this is an emulation of 2 devices") == 1
    assert "Nothing is trained" in job.stdout
    assert "schedule                 1f1b" in job.stdout
    # (m + p - 1)(F + I + W) of two layers a stage
    assert "simulated step           300.00 ms" in job.stdout
    assert ", the median of 10 (" in job.stdout
    assert "stretched" not in job.stdout


@pytest.mark.alone
def test_short_actions_are_stretched(tmp_path: Path) -> None:
    """F takes 1 ms, I and W 10 ms each: the mean of 7 ms becomes 10 ms."""
    options = write_job(tmp_path, "{schedule: gpipe, microbatches: 2}", layers=1, forward=0.001)
    job = run_alone(options)
    assert job.returncode == 0, job.stdout[-4000:]
    assert "all seconds are stretched 1.429-fold" in job.stdout
    assert "simulated step           42.00 ms" in job.stdout
    measured = re.search(r"measured step .*the median of 10 \(([0-9.]+) to", job.stdout)
    assert measured is not None
    assert 42 <= float(measured[1]) < 60  # the fastest; as it passed here, it takes 60


@pytest.mark.parametrize(
    ("ranks", "parallel", "layers", "message"),
    [
        (2, "{pipeline: 4}", 4, "parallel.pipeline is 4, but the number of processes is 2; start"),
        (2, "{pipeline: 2, schedule: 1f1b}", 1, "1 layers cannot be split into 2 stages"),
        (1, "{pipeline: 4}", 4, "but the number of processes is 1; start as many"),
        (1, "{pipeline: 2, data: 2}", 4, "add --set parallel.data=1"),
        (1, "{split: [a]}", 4, "add --set parallel.split=null"),
        (1, "{costs: mine.yaml}", 4, "add --set parallel.costs=null"),
        (1, "{devices: 4}", 4, "parallel.devices is 4, but --emulate is of one pipeline; add"),
        (1, "{recompute: true}", 4, "add --set parallel.recompute=false"),
        (1, "{memory_bytes: 1, schedule: 1f1b}", 4, "the memory limit is 1: stage 0 lacks "),
        (1, "{schedule: none}", 4, "parallel.schedule is none"),
        (1, "null", 4, "parallel is missing; give the job a pipeline"),
    ],
)
def test_mistakes_end_all_ranks_with_one_message(
    tmp_path: Path, ranks: int, parallel: str, layers: int, message: str
) -> None:
    options = write_job(tmp_path, parallel, layers)
    job = run_alone(options) if ranks == 1 else run_mpi(ranks, WORKER, "program", *options)
    assert job.returncode == 2, job.stdout
    assert job.stdout.count("ooodist: error: ") == 1
    assert message in job.stdout


@pytest.mark.parametrize(
    "option", ["--resume", "--profile", "--print-config", "--plan=p", "--output=o", "--engine=auto"]
)
def test_options_without_effect_are_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--emulate", "costs.yaml", option]) == 2
    name = option.partition("=")[0]
    assert f"--emulate trains nothing, so {name} has no effect" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["job.yaml", "costs.yaml"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    options = write_job(tmp_path, "{pipeline: 2}")
    (tmp_path / name).unlink()
    job = run_mpi(2, WORKER, "program", *options)
    assert job.returncode == 2, job.stdout
    assert job.stdout.count("ooodist: error: ") == 1
    assert f"{tmp_path / name} cannot be read" in job.stdout


def test_a_stall_ends_all_ranks(tmp_path: Path) -> None:
    parallel = "{pipeline: 2, schedule: 1f1b}"
    options = write_job(tmp_path, parallel, layers=2, forward=4.0, timeout=1)
    job = run_mpi(2, WORKER, "program", *options)
    assert job.returncode == 2, job.stdout
    said = r"rank 1 waits at 1RECV_F0 since \d+ s: the message is not sent by rank 0"
    assert re.search(said, job.stdout), job.stdout


def run_alone(options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Without mpirun."""
    return subprocess.run(
        [fast_python(), str(WORKER), "program", *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
