"""ooodist.run: results by rank, exceptions with their rank, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import ooodist
from ooodist.errors import WorkerError
from ooodist.launcher.function import travel
from tests.jobs import ROOT
from tests.launcher.conftest import wait_until
from tests.launcher.function import functions
from tests.launcher.function.quick import quick_workers

PROGRAM = Path(functions.__file__)


def test_results_come_by_rank_and_rank_0_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    results = ooodist.run(functions.of_each, [3], {"more": 1}, np=3, engine="horovod")
    assert [number for number, _ in results] == [1, 4, 7]
    assert {len(text) for _, text in results} == {100_000}
    assert capsys.readouterr().out == "this is rank 0\n"


def test_functions_of_a_notebook_train(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_workers(monkeypatch)
    source = PROGRAM.read_text().partition("def trains()")[2].partition("\n\n\n")[0]
    cell = {"ooodist": ooodist, "__name__": "__main__"}  # no module has it
    exec(f"def trains(){source}", cell)
    (size, losses), (_, same) = ooodist.run(cell["trains"])
    assert size == 2
    assert losses == same
    shown = capsys.readouterr()
    assert "loss: " in shown.out
    assert "engine collective" in shown.err


def test_what_a_worker_raises_comes_back_with_its_rank() -> None:
    with pytest.raises(WorkerError, match=r"^rank 1: ValueError: no such file: a.npz") as raised:
        ooodist.run(functions.raises)
    assert raised.value.rank == 1
    assert type(raised.value.__cause__) is ValueError
    assert 'raise ValueError("no such file: a.npz")' in str(raised.value)


def test_a_worker_that_is_killed_is_named() -> None:
    with pytest.raises(WorkerError) as raised:
        ooodist.run(functions.is_killed)
    assert raised.value.rank == 1
    assert "worker 1 was killed by signal 9 (Killed)" in str(raised.value)
    assert "[1] about to die" in str(raised.value)


def test_a_worker_that_leaves_has_no_result() -> None:
    with pytest.raises(WorkerError, match=r"rank 1 has ended without a result \(exit code 0\)"):
        ooodist.run(functions.ends)


def test_what_cannot_be_pickled_is_told() -> None:
    with pytest.raises(ooodist.UserError, match="and its arguments cannot be pickled"):
        ooodist.run(print, [threading.Lock()])
    with pytest.raises(WorkerError, match="rank 0: TypeError: cannot pickle"):
        ooodist.run(functions.returns_a_lock, np=1)


def test_wrong_use_is_told() -> None:
    with pytest.raises(ooodist.UserError, match="is given a list; it takes a function"):
        ooodist.run([1])  # type: ignore[arg-type]
    with pytest.raises(ooodist.UserError, match="np is 0; it must be a whole number of at least 1"):
        ooodist.run(functions.ends, np=0)
    with pytest.raises(
        ooodist.UserError, match="engine is 'nccl'; it must be one of local, collective"
    ):
        ooodist.run(functions.ends, engine="nccl")
    with pytest.raises(ooodist.UserError, match="host nowhere: its name does not resolve"):
        ooodist.run(functions.ends, hosts="nowhere:2")


def test_a_folder_that_others_reach_is_not_read(tmp_path: Path) -> None:
    travel.write(tmp_path / travel.CALL, 1)
    assert (tmp_path / travel.CALL).stat().st_mode & 0o777 == 0o600
    tmp_path.chmod(0o700)
    assert travel.read(tmp_path / travel.CALL) == 1
    tmp_path.chmod(0o750)
    with pytest.raises(ooodist.UserError, match="is open to other users"):
        travel.read(tmp_path / travel.CALL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_runs_on_when_the_program_is_ended(tmp_path: Path, number: int) -> None:
    folder, temporary = tmp_path / "started", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder)],
        env={"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "PATH": ""},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: len(list(folder.iterdir())) == 2, lambda: "no workers", 60)
        program.send_signal(number)
        _, said = program.communicate(timeout=30)
    finally:
        program.kill()
        program.wait()
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)

    def running() -> list[str]:
        return [each.name for each in folder.iterdir() if Path("/proc", each.name).exists()]

    wait_until(lambda: not running(), lambda: f"still running: {running()}")
    wait_until(lambda: not list(temporary.iterdir()), lambda: f"{list(temporary.iterdir())}")
