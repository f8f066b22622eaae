"""expr/at_home: what is read from a job's output, and the tables."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ooodist.config import job as config
from tests.expr.scripts import load
from tests.jobs import ROOT

PRINTED = """\
[0] ooodist: tried in training: default 55.5 ms a step (predicted 50.0), planned 73.2 ms a step \
(predicted 48.1), first_k 44.0 ms a step; first_k stays
[0] ooodist: tried in training: first_k 45.0 ms a step (predicted 44.0), planned_2 40.0 ms a step \
(predicted 41.0); planned_2 stays
[0] epoch  7/70 step 22/22 | accuracy 0.9694 loss 0.1012 | 59.8 ms/step 1070 samples/s | 2:06 left
[0] speed        55.6 ms a step (median), 1150 samples/s
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("at_home", "run")


def test_what_was_tried_is_read(script: ModuleType) -> None:
    found = script.read_tried(PRINTED)
    assert [each.name for each in found] == [
        *("default", "planned", "first_k"),
        *("first_k", "planned_2"),
    ]
    assert [each.trial for each in found] == [1, 1, 1, 2, 2]
    assert [each.measured for each in found] == pytest.approx([0.0555, 0.0732, 0.044, 0.045, 0.04])
    assert [each.predicted for each in found[:2]] == pytest.approx([0.05, 0.0481])
    assert found[2].predicted is None
    assert [each.stays for each in found] == [False, False, True, False, True]
    assert script.read_tried("nothing was planned") == []


def test_the_step_is_read(script: ModuleType) -> None:
    assert script.step_seconds(PRINTED) == pytest.approx(0.0556)
    assert script.step_seconds("Epoch 1/20") is None


def test_every_job_is_one_that_ooodist_takes(script: ModuleType, tmp_path: Path) -> None:
    for job in script.JOBS.values():
        for way in ("default", "planned", "tried"):
            command = job.command(way, tmp_path)
            if not job.settings:
                assert command[-1] == ("inorder" if way == "default" else "planned")
                continue
            file = command[command.index("--config") + 1] if "--config" in command else None
            given = [command[at + 1] for at, part in enumerate(command) if part == "--set"]
            made = config.load(None if file is None else ROOT / file, given)
            assert made.order.name == ("inorder" if way == "default" else "planned")
            assert made.planning.share == (1000 if way == "tried" else 0.02)


def test_a_job_with_a_long_trial_ends_with_it(script: ModuleType, tmp_path: Path) -> None:
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "import subprocess, sys\n"
        "print(sys.argv[1:], flush=True)\n"
        f"print({PRINTED!r}, flush=True)\n"
        "subprocess.run(['sleep', '100'])  # a process of its own, with the same output\n"
    )
    job = script.Job((sys.executable, str(launcher)), ("--set", "batch=8"))
    began = time.monotonic()
    assert script.first_trial(job, 24, tmp_path) == PRINTED.splitlines(keepends=True)[0]
    assert time.monotonic() - began < 50
    train, rounds, *given = job.command("tried", tmp_path, 24)[3:]
    assert (ROOT / train).is_file()
    assert (rounds, given[:2]) == ("24", ["--set", "batch=8"])
    launcher.write_text("raise SystemExit('no such engine')")
    with pytest.raises(SystemExit, match="no such engine"):
        script.first_trial(job, 24, tmp_path)


def test_tables(script: ModuleType, tmp_path: Path) -> None:
    rows = [
        {"job": "a", "way": way, "repeat": str(repeat), "seconds": seconds, "step_seconds": step}
        for repeat in range(2)
        for way, seconds, step in (("default", "20.0", "0.1"), ("planned", "19.0", "0.09"))
    ]
    assert script.jobs_table(rows).splitlines()[2:] == ["| a | 20.0 | 19.0 | 0.95 | 0.90 |"]
    tried = [
        {"job": "a", "trial": trial, "plan": plan, "predicted": predicted, "measured": measured}
        | {"stays": stays}
        for trial, plan, predicted, measured, stays in (
            ("1", "default", "0.05", "0.1", "yes"),
            ("1", "planned", "", "0.2", ""),
            ("2", "default", "0.1", "0.1", ""),
            ("2", "planned", "0.09", "0.08", "yes"),
        )
    ]
    assert script.tried_table(tried).splitlines()[2:] == [
        "| a | 1 | default | 50.0 | 100.0 | -50% | - | - | - | yes |",
        "| a | 1 | planned | - | 200.0 | - | - | - | - |  |",
        "| a | 2 | default | 100.0 | 100.0 | +0% | - | - | - |  |",
        "| a | 2 | planned | 90.0 | 80.0 | +12% | 0.90 | 0.80 | +12% | yes |",
        "",
        "Errors of 3 predicted seconds: median 12%, largest 50%.",
        "",
        "Errors of 1 predicted ratios to the first of a trial: median 12%, largest 12%.",
    ]
    file = tmp_path / "tried.csv"
    script.write(file, list(tried[0]), tried)
    script.write(file, list(tried[0]), [tried[0] | {"job": "b"}])
    assert [line[0] for line in file.read_text().splitlines()[1:]] == [*"aaaab"]
    script.write(file, list(tried[0]), tried[:1])  # measured again: the old ones are gone
    assert [line[0] for line in file.read_text().splitlines()[1:]] == ["b", "a"]


@pytest.fixture(scope="module")
def noise() -> ModuleType:
    return load("at_home", "noise")


def test_without_noise_a_trial_measures_what_each_takes(noise: ModuleType) -> None:
    calls = np.full(50, 0.02)
    assert noise.row(calls, (0.95,), trials=3).startswith("| 0.95 | 0.950 | 0% | 0.0% | 0% |")
    done = noise.replay(calls, (1.03, 0.97), begin=7)
    assert done.stays == 0.97
    assert done.measured == pytest.approx([1.03, 0.97])


def test_with_noise_the_fastest_nearly_always_stays(noise: ModuleType) -> None:
    generator = np.random.default_rng(0)
    slow = np.repeat(generator.lognormal(0, 0.1, 100), 30)  # phases of the machine
    calls = 0.02 * slow * generator.lognormal(0, 0.1, len(slow))
    stays = [noise.replay(calls, (0.9, 1.1), begin).stays for begin in range(0, 3000, 60)]
    assert stays.count(1.1) == 0
    assert stays.count(0.9) > 40


def test_variables_that_are_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Others have a run.py, too.
    monkeypatch.setitem(sys.modules, "run", load("at_home", "run"))
    variables = load("at_home", "variables")
    assert list(variables.WAYS) == list(variables.USUAL)
    asked: list[str | None] = []

    def step(_job: str, given: dict[str, str]) -> float:
        asked.append(given.get("OOODIST_CORES"))
        return 20.0 + len(asked)

    monkeypatch.setattr(variables, "step_milliseconds", step)
    jobs = ["cores", "--jobs", "GPT, Horovod", "--repeats", "3"]
    monkeypatch.setattr(sys, "argv", ["variables.py", *jobs])
    variables.main()
    assert asked == ["all", "own", "own", "all", "all", "own"]  # in turns, each first as often
    *_, line = capsys.readouterr().out.splitlines()
    assert line == "| GPT, Horovod | 24.0 (21.0 to 25.0) | 23.0 (22.0 to 26.0) |"
