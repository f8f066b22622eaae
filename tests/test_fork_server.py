"""A program that is forked runs, and ends, as by Python itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fork_server import fast_python
from tests.jobs import ROOT

SHOW = """
import os, sys
print(sys.argv, sys.path[0], os.getcwd(), __name__, __file__ if "__file__" in globals() else "")
print(sys.stdin.read(), os.environ.get("MINE"), sorted(os.sched_getaffinity(0)), os.umask(0))
print(sys.executable, sys.stdout.encoding, "tests" in sys.modules, file=sys.stderr)
"""
ENDS = {
    "sys.exit(3)": 3,
    "sys.exit(-1)": 255,
    "sys.exit()": 0,
    "sys.exit('why')": 1,
    "raise ValueError": 1,
    "os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
    "os.kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM,
}


def run(python: str, *arguments: str, folder: Path) -> tuple[int, str, str]:
    environment = os.environ | {"MINE": "é", "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=environment,
        input="given",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("how", ["-c", "-m", "a script"])
def test_it_finds_what_python_gives_it(how: str, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(SHOW)
    first = {"-c": ["-c", SHOW], "-m": ["-m", "shown"], "a script": ["shown.py"]}[how]
    real = run(sys.executable, *first, "x", "y z", folder=tmp_path)
    assert real[0] == 0, real
    assert run(fast_python(), *first, "x", "y z", folder=tmp_path) == real


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_as_it_does(end: str, tmp_path: Path) -> None:
    program = f"import os, signal, sys\nprint('begun', flush=True)\n{end}"
    code, output, _ = run(fast_python(), "-c", program, folder=tmp_path)
    assert (code, output) == (ENDS[end], "begun\n")


def test_what_is_to_be_done_at_the_end_is_done(tmp_path: Path) -> None:
    program = (
        "import atexit, threading\natexit.register(print, 'last', end='')\n"
        "threading.Timer(0.2, print, ['a thread']).start()\nprint('end')"
    )
    ended = run(fast_python(), "-c", program, folder=tmp_path)
    assert ended == (0, "end\na thread\nlast", "")


def test_signals_reach_it_and_it_ends_with_its_stub() -> None:
    program = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))\n"
        "print(os.getpid(), flush=True)\nwhile True: time.sleep(1)"
    )
    stub = subprocess.Popen([fast_python(), "-c", program], stdout=subprocess.PIPE, text=True)
    assert stub.stdout
    forked = int(stub.stdout.readline())
    assert forked != stub.pid
    stub.terminate()
    assert stub.stdout.readline() == "told\n"
    stub.kill()
    assert stub.wait() == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while Path(f"/proc/{forked}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_is_read_while_python_starts_starts_python() -> None:
    """So that no variable is ignored."""
    program = "import sys; print(sys.flags.hash_randomization, 'tensorflow' in sys.modules)"
    for seed, expected in (("0", "0 False"), (None, "1 True")):
        variables = {} if seed is None else {"PYTHONHASHSEED": seed}
        output = subprocess.check_output(
            [fast_python(), "-c", program], env=os.environ | variables, cwd=ROOT, text=True
        )
        assert output.strip() == expected
