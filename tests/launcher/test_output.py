"""How the bytes of a process become lines."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ooodist.launcher import output

from .conftest import LOCAL, Launchers, python

WHOLE, PROGRESS = True, False


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], [(b"a", WHOLE), (b"b", WHOLE)]),
        ([b"a", b"b", b"\n"], [(b"ab", WHOLE)]),
        ([b"\n\n"], [(b"", WHOLE), (b"", WHOLE)]),
        ([b"1 %\r2 %\rdone\n"], [(b"1 %", PROGRESS), (b"2 %", PROGRESS), (b"done", WHOLE)]),
        ([b"1 %\r", b"\n"], [(b"1 %", PROGRESS), (b"1 %", WHOLE)]),
        ([b"\r1 %", b"\r2 %"], [(b"1 %", PROGRESS), (b"2 %", WHOLE)]),
        ([b"1 %\r"], [(b"1 %", PROGRESS), (b"1 %", WHOLE)]),
        ([b"no line feed"], [(b"no line feed", WHOLE)]),
        ([b"a\r\nb\r\n"], [(b"a", PROGRESS), (b"a", WHOLE), (b"b", PROGRESS), (b"b", WHOLE)]),
        ([b"gr\xc3", b"\xb6\xc3\x9fe\n"], [("größe".encode(), WHOLE)]),
        ([], []),
    ],
)
def test_lines(chunks: list[bytes], lines: list[tuple[bytes, bool]]) -> None:
    splitter = output.LineSplitter()
    found = [line for chunk in chunks for line in splitter.feed(chunk)]
    assert found + list(splitter.end()) == lines


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    splitter = output.LineSplitter()
    lines = [line for _ in range(64) for line in splitter.feed(b"x" * (1 << 16))]
    lines += splitter.end()
    assert sum(len(text) for text, _ in lines) == 64 << 16
    assert len(lines) > 2


def test_streams_and_files(launchers: Launchers, tmp_path: Path) -> None:
    # A worker's Python would write ASCII here.
    launchers.environment |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    logs = tmp_path / "made" / "here"
    script = r"import sys; print('gr\u00f6\u00dfe'); print('next'); print('error', file=sys.stderr)"
    done = launchers.run(
        *("-np", "2", "--engine", "collective", "--log-dir", str(logs)),
        *("--", "python3", "-c", script),
    )
    assert done.returncode == 0
    for rank in ("0", "1"):
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] größe", f"[{rank}] next"]
        log = (logs / f"{rank}.log").read_text(encoding="utf-8").splitlines()
        assert sorted(log) == ["error", "größe", "next"]
    errors = [line for line in done.stderr.splitlines() if not line.startswith("[launch]")]
    assert sorted(errors) == ["[0] error", "[1] error"]


def test_notes_of_tensorflow_are_in_the_log_alone(launchers: Launchers, tmp_path: Path) -> None:
    notes = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "W0000 00:00:1795430074.176261   30789 session_manager.cc:55] delay_ms expects an i value.",
        "I1123 10:33:18.123456    7 port.cc:153] oneDNN custom operations are on.",
        "2026-11-23 10:33:18.5: I tensorflow/core/platform/cpu_feature_guard.cc:227] This is",
        "To enable the following instructions: AVX2 FMA, rebuild TensorFlow with the appropriate",
    ]
    shown = [
        "E0000 00:00:1795430074.176261   30789 session_manager.cc:55] out of memory",
        "2026-11-23 10:33:18.5: F tensorflow/core/platform/env.cc:27] Check failed",
        "ooodist: warning",
    ]
    lines = "\n".join([*notes, *shown, ""])
    script = f"import sys; sys.stderr.write({lines!r}); sys.exit(1)"
    job = ["-np", "1", "--engine", "local"]
    logged = launchers.run(*job, "--log-dir", str(tmp_path), *python(script)).stderr.splitlines()
    assert [line for line in logged if line.startswith("[0]")] == [f"[0] {line}" for line in shown]
    assert logged[-1].endswith(f"ending the job; all that was written: {tmp_path}")
    assert (tmp_path / "0.log").read_text().splitlines() == [*notes, *shown]
    unlogged = launchers.run(*job, *python(script)).stderr
    assert all(line in unlogged for line in [*notes, *shown])


def test_a_line_without_end_is_shown_while_its_pipe_is_held_open(launchers: Launchers) -> None:
    # A daemon, in a session of its own, goes on after the job.
    script = "setsid sleep 3 & sleep 0.5; printf unfinished"
    done = launchers.start("-np", "1", "--engine", "local", "--", "sh", "-c", script)
    assert done.communicate(timeout=20)[0] == "[0] unfinished\n"


def test_progress_in_a_file_is_only_its_last_state(launchers: Launchers) -> None:
    done = launchers.run(
        *("-np", "1", "--engine", "local", "--"), "printf", r"1 %%\r2 %%\rdone\n50 %%\r60 %%\r"
    )
    assert done.stdout == "[0] done\n[0] 60 %\n"


def test_progress_on_a_terminal_is_shown_in_time(launchers: Launchers, tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    script = f"printf '50 %%\\r'; while ! test -e {go_on}; do sleep 0.05; done; echo done"
    terminal, other_end = pty.openpty()
    launcher = launchers.start(
        *("-np", "1", "--engine", "local", "--", "sh", "-c", script), stdout=other_end
    )
    os.close(other_end)
    assert os.read(terminal, 100) == b"[0] 50 %"
    assert launcher.poll() is None
    go_on.touch()
    assert launcher.wait(timeout=10) == 0
    assert os.read(terminal, 100) == b"\r\x1b[K[0] done\r\n"
    os.close(terminal)


def test_the_job_ends_when_nobody_reads(launchers: Launchers) -> None:
    launcher = launchers.start("-np", "2", "--engine", "collective", "--", "yes")
    assert launcher.stdout is not None
    assert launcher.stdout.readline().endswith("] y\n")
    assert launcher.stderr is not None
    launcher.stdout.close()
    assert "ooodist: error: cannot write the output of the job" in launcher.stderr.read()
    assert launcher.wait(timeout=10) == 2


def test_nobody_needs_to_read_for_a_job_to_end(launchers: Launchers) -> None:
    reader, writer = os.pipe()  # a terminal after Ctrl-S is the same
    job = ["-np", "1", "--engine", "local"]
    timed = launchers.start(*job, "--timeout", "2", "--", "yes", stdout=writer)
    told = launchers.start(*job, "--", "sh", "-c", "echo begun >&2; exec yes", stdout=writer)
    assert told.stderr is not None
    assert told.stderr.readline() == "[0] begun\n"
    told.send_signal(signal.SIGTERM)
    assert told.wait(timeout=12) == 143
    assert "SIGTERM: ending the job" in told.stderr.read()
    assert timed.wait(timeout=12) == 124
    os.close(writer)
    os.close(reader)


def test_all_lines_of_a_job_wait_for_a_slow_reader(launchers: Launchers) -> None:
    launcher = launchers.start("-np", "1", "--engine", "local", "--", "seq", "100000")
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(timeout=1.5)  # the pipe is full
    stdout, _ = launcher.communicate(timeout=20)
    assert stdout == "".join(f"[0] {number}\n" for number in range(1, 100_001))
    assert launcher.returncode == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(launchers: Launchers, tmp_path: Path, closed: str) -> None:
    job = (
        f"{sys.executable} {LOCAL} -np 1 --engine local --log-dir {tmp_path} -- echo done {closed}"
    )
    done = subprocess.run(
        ["sh", "-c", job], env=launchers.environment, capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("[0] done\n" if closed == "2>&-" else "")
    assert (tmp_path / "0.log").read_text() == "done\n"


class Shown:
    """An Output whose lines are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path | None = None) -> None:
        self.lines: list[bytes] = []
        monkeypatch.setattr(
            output.os, "write", lambda _, line: self.lines.append(line) or len(line)
        )
        self.output = output.Output(folder)

    def errors(self, *texts: bytes) -> list[bytes]:
        """What is shown of these, which worker 0, 1, ... write to standard error."""
        self.lines.clear()
        for rank, text in enumerate(texts):
            self.output.show(2, str(rank), text, whole=True)
        return self.lines


def test_an_error_of_all_processes_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch)
    same, other = b"ooodist: error: batch is 0", b"ooodist: error: batch is 1"
    assert shown.errors(same, same, other) == [b"[0] " + same + b"\n", b"[2] " + other + b"\n"]
    assert shown.errors(b"same", b"same") == [b"[0] same\n", b"[1] same\n"]


def test_errors_of_tensorflow_are_left_out_when_the_job_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = Shown(monkeypatch)
    closed = b"E0000 00:00:1795445015.0   704 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE"
    more = b"Additional GRPC error information from remote target /job:worker while calling"
    own = b"saved before the end"
    assert len(shown.errors(closed, more, own)) == 3
    shown.output.hide_aftermath()
    assert shown.errors(closed, more, own) == [b"[2] " + own + b"\n"]
