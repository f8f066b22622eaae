"""``ooodist.run``: starts workers that run a function of this program or notebook."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ooodist.engines.kinds.collective import Collective
from ooodist.errors import UserError, WorkerError
from ooodist.launcher.arguments import engines
from ooodist.launcher.cleaner import Cleaner
from ooodist.launcher.function.travel import CALL, Outcome, outcome_file, read, write
from ooodist.launcher.output import LineSplitter

LABEL = re.compile(rb"\[(\w[\w -]*)\] ?")  # that the launcher puts before each line
WORKER = re.compile(r"\b(?:worker|rank) (\d+)")  # in what it says of their ends
SHOWN = (b"0", b"launch")
LAST_LINES = 10  # of each rank, for one that ends without a word
INSIST_SECONDS = 0.5  # until a second SIGTERM, after which the launcher waits for nobody


def run(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int = 2,
    engine: str = Collective.name,
    hosts: str | None = None,
) -> list[Any]:
    """Starts workers, calls a function on each of them, and returns their results.

    The function is written like a program for ``ooodist-launch``: it begins with
    ``ooodist.init()``, and imports what it needs. It may be defined anywhere, also in a notebook.
    Only the output of rank 0 is shown. All workers end with this call, even if it is interrupted
    or this process is killed.

    Args:
        function: the function to call. It, its arguments and its results travel as pickles, in
            files that only this user can read.
        args: its arguments, the same on all workers.
        kwargs: its arguments by keyword.
        np: the number of workers.
        engine: "collective", "horovod", "byteps", "mpi" (for pipelines), "horovod-mpi" or "local".
        hosts: ``a:2,b:2``, or a file with one host per line, which ssh reaches without a prompt;
            None: this machine. All hosts must see the current folder, as the pickles travel in it.

    Returns:
        the results, by rank.

    Raises:
        WorkerError: the function has raised something, or a worker has ended without a result; it
            names the rank.
        UserError: the arguments are wrong, or one of them or a result cannot be pickled.
    """
    _check(function, np, engine)
    with Cleaner() as cleaner:
        folder = cleaner.new_folder(None if hosts is None else Path.cwd())
        call = folder / CALL
        try:
            write(call, (function, tuple(args), dict(kwargs or {})))
        except Exception as error:
            raise UserError(
                f"ooodist.run: {function} and its arguments cannot be pickled "
                f"({type(error).__name__}: {error}); make what cannot travel, such as an open "
                "file, inside of the function"
            ) from error
        command = [sys.executable, "-m", "ooodist.launch", "-np", str(np), "--engine", engine]
        command += [] if hosts is None else ["--hosts", hosts]
        worker = [sys.executable, "-m", "ooodist.launcher.function.worker", str(call)]
        launcher = cleaner.popen(
            [*command, "--", *worker],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(_search_path())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            lines = _show(launcher)
            code = launcher.wait()
        finally:
            _end(launcher)
        return _results(call, np, code, lines)


def _check(function: Any, np: Any, engine: str) -> None:
    if not callable(function):
        raise UserError(
            f"ooodist.run is given a {type(function).__name__}; it takes a function: "
            "ooodist.run(train, np=2), not ooodist.run(train())"
        )
    if not isinstance(np, int) or np < 1:
        raise UserError(f"ooodist.run: np is {np!r}; it must be a whole number of at least 1")
    if engine not in (known := engines()):
        raise UserError(f"ooodist.run: engine is {engine!r}; it must be one of {', '.join(known)}")


def _search_path() -> list[str]:
    """Where this process looks for modules; workers find those of the function there."""
    return [entry or os.getcwd() for entry in sys.path]


def _show(launcher: subprocess.Popen[bytes]) -> dict[bytes, deque[str]]:
    """Shows the output of rank 0 until it ends; returns the last lines by label, b"" if none."""
    assert launcher.stdout
    assert launcher.stderr
    last: dict[bytes, deque[str]] = {}
    with selectors.DefaultSelector() as selector:
        for pipe, name in ((launcher.stdout, "stdout"), (launcher.stderr, "stderr")):
            selector.register(pipe, selectors.EVENT_READ, (name, LineSplitter()))
        while selector.get_map():
            for key, _ in selector.select():
                name, splitter = key.data
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                for text, _ in splitter.feed(data) if data else splitter.end():
                    label = LABEL.match(text)
                    whose = label[1] if label else b""
                    line = text[label.end() if label else 0 :].decode(errors="replace")
                    last.setdefault(whose, deque(maxlen=LAST_LINES)).append(line)
                    if whose in SHOWN:
                        stream = getattr(sys, name)  # a notebook's, which has no descriptor
                        print(f"[launch] {line}" if whose == b"launch" else line, file=stream)
                        stream.flush()
    return last


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """Ends the launcher and its job, if they still run."""
    for _ in range(2):
        if launcher.poll() is None:
            launcher.terminate()
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(INSIST_SECONDS)
    for pipe in (launcher.stdout, launcher.stderr):
        assert pipe
        pipe.close()


def _results(call: Path, np: int, code: int, lines: Mapping[bytes, Sequence[str]]) -> list[Any]:
    """The results by rank. Raises WorkerError, for the rank that failed first."""
    files = [outcome_file(call, rank) for rank in range(np)]
    found: dict[int, Outcome] = {
        rank: read(file) for rank, file in enumerate(files) if file.exists()
    }
    failures = [(each.when, rank) for rank, each in found.items() if each.failure is not None]
    if failures:
        _, rank = min(failures)
        outcome = found[rank]
        text = f"rank {rank}: {outcome.failure}\n\n{outcome.trace}"
        raise WorkerError(text, rank) from outcome.error
    if code == 0 and len(found) == np:
        return [found[rank].result for rank in range(np)]
    if not found and b"launch" not in lines and b"" in lines:  # of the launcher itself
        raise UserError(lines[b""][-1].removeprefix("ooodist: error: "))
    said = [f"[{label.decode()}] {line}" for label, last in lines.items() for line in last]
    named = WORKER.findall("\n".join(lines.get(b"launch", ())))
    missing = [rank for rank in range(np) if rank not in found]
    rank = int(named[0]) if named else (missing or [0])[0]
    first = f"rank {rank} has ended without a result (exit code {code})"
    raise WorkerError("\n".join([first, *said]), rank)
