"""What a program says when something is wrong."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ooodist.errors import UserError
from ooodist.util import program
from ooodist.util.program import Parser, refused


def test_a_program_that_is_refused_says_why_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert refused(UserError("batch is 0; it must be at least 1")) == 2
    assert capsys.readouterr() == ("", "ooodist: error: batch is 0; it must be at least 1\n")


def test_other_ranks_let_the_first_one_say_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = []  # when a rank begins to wait
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)  # of this process, they stay
    monkeypatch.setattr(program.time, "sleep", lambda _: printed.append(capsys.readouterr().err))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    refused(UserError("batch is 0"))
    assert printed == []
    assert capsys.readouterr().err == "ooodist: error: batch is 0\n"
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    refused(UserError("batch is 0"))
    assert printed == [""]
    assert capsys.readouterr().err == "ooodist: error: batch is 0\n"  # it is this rank's alone


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_rank_that_waits_is_ended_without_a_word(number: signal.Signals) -> None:
    code = f"""if True:
        import os, signal, time
        from ooodist.errors import UserError
        from ooodist.util import program
        for each in (signal.SIGINT, signal.SIGTERM):  # as a job does
            signal.signal(each, lambda *_: print("SIGTERM: ends; no step is lost", flush=True))
        program.time.sleep = lambda _: os.kill(os.getpid(), {number:d})
        os.environ["OOODIST_RANK"] = "1"
        program.refused(UserError("batch is 0"))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")


def parser() -> Parser:
    made = Parser(prog="python -m program", epilog="examples:\n  as it is")
    commands = made.add_subparsers(dest="command", required=True)
    commands.add_parser("count").add_argument("--number", type=int)
    return made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: command; python -m program --help shows"),
        (
            ["count", "--number", "x"],
            "invalid int value: 'x'; python -m program count --help",
        ),
        (["count", "--num", "1"], "unrecognized arguments: --num 1; python -m program --help"),
    ],
)
def test_wrong_options_are_user_errors(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parser().parse_args(arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_examples_are_shown_as_they_are() -> None:
    assert "examples:\n  as it is" in parser().format_help()
