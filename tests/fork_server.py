"""Starts Python programs in 0.1 s, by forks of a process that has imported TensorFlow.

An import of TensorFlow takes 4 s of CPU, and tests start some 700 processes that need it. So each
process of pytest has a server that has imported TensorFlow, Keras and ooodist and has run no
operation: TensorFlow starts its threads at the first one, in the fork.

    test -> launcher or mpirun -> stub  -- arguments, variables, streams -->  server
                                   ^                                            | fork
                                   +----------- stops, how it ended <--------- program

``fast_python()`` is the path of the stub, which takes the place of ``sys.executable`` in a command.
The program has the stub's arguments, variables, streams, folder, cores, limits and network. Signals
to the stub reach it. It is killed when the stub ends, and the stub ends as it does. What a fork
cannot imitate is run by the real Python: options other than -m and -c, and variables that are read
while Python starts or TensorFlow is imported.

What differs: the program is neither the stub's child nor in its process group, /proc shows the
server's variables and command for it, and all programs of a server have one PYTHONHASHSEED. Where
that matters (tests of the launcher, of kills, of what is left behind), and where the start is what
is tested, the real Python stays.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

# With other values of these than the server's, a program is run by the real Python.
_READ_AT_THE_START = ("PYTHON", "LD_", "XLA_", "TF_ENABLE_", "KERAS_", "MALLOC_", "COVERAGE_")
_IMITATED = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONSAFEPATH")
_PRELOADED = (  # nothing that imports mpi4py or an engine
    "ooodist.plan.__main__",
    "ooodist.job.run",
    "ooodist.job.distribute",
    "ooodist.zoo.start",
    "tensorboard.summary.v2",
)
_FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
GARBAGE = 50_000  # objects until a collection; with Python's 700, tracing spends 9 % on it
_NAMESPACES = ("user", "net", "uts", "ipc", "mnt")
_LENGTH = struct.Struct("!I")


@functools.cache
def fast_python() -> str:
    """The path of the stub; starts the server of this process."""
    import atexit
    import subprocess
    import tempfile

    if os.environ.get("OOODIST_TESTS_FORK") == "0":
        return sys.executable
    folder = tempfile.TemporaryDirectory(prefix="fork-server-")
    address, stub = f"{folder.name}/socket", f"{folder.name}/python"
    with socket.socket(socket.AF_UNIX) as listener, open(f"{folder.name}/log", "wb") as log:
        listener.bind(address)
        listener.listen(64)
        command = [sys.executable, __file__, str(listener.fileno())]
        server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # the server ends with it
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},  # read at the import
            start_new_session=True,
        )

    def end() -> None:
        assert server.stdin
        server.stdin.close()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    with open(stub, "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
        file.write(
            f"#!{sys.executable} -IS\n"
            "import sys\n"
            f"sys.path.append({os.path.dirname(__file__)!r})\n"
            "import fork_server\n"
            f"fork_server.stub({address!r}, {sys.executable!r}, {_read_at_the_start()!r})\n"
        )
    return stub


def _read_at_the_start() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_READ_AT_THE_START) and name not in _IMITATED
    }


def stub(address: str, python: str, of_server: dict[str, str]) -> None:
    """Has the server run the program in this command line, and ends as it does."""
    arguments = sys.argv[1:]
    named = arguments and (arguments[0] in ("-m", "-c") or not arguments[0].startswith("-"))
    if not named or _read_at_the_start() != of_server:
        os.execv(python, [python, *arguments])
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "umask": os.umask(0),
        "blocked": [int(number) for number in usual],
        "ignored": [n for n in _FORWARDED if signal.getsignal(n) == signal.SIG_IGN],
    }
    body = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [_LENGTH.pack(len(body))], [0, 1, 2])
        server.sendall(body)
        replies = server.makefile()
        program = int(replies.readline())
        for number in _FORWARDED.difference(request["ignored"]):
            signal.signal(number, lambda number, _: _kill(program, number))
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        for line in replies:
            how, code = line.split()
            if how == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
                _kill(program, signal.SIGCONT)  # as somebody has continued this process
            else:
                _end_like(int(code))
    sys.exit("the fork server has ended: see its log in the folder of this program")


def _end_like(code: int) -> None:
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)


def _kill(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


class _Server:
    """Forks itself for each request."""

    def __init__(self, listener: socket.socket) -> None:
        import selectors

        self._programs: dict[int, socket.socket] = {}  # their stubs
        self._selector = selectors.DefaultSelector()
        self._wakeup, writer = socket.socketpair()
        writer.setblocking(False)
        self._writer = writer
        self._listener = listener
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for readable in (sys.stdin.buffer, listener, self._wakeup):
            self._selector.register(readable, selectors.EVENT_READ)

    def wait(self) -> dict[str, Any]:
        """Serves until it is a fork that is to run a program; returns what is known of that."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin.buffer:
                    for program in self._programs:
                        _kill_group(program)
                    os._exit(0)
                elif key.fileobj is self._wakeup:
                    self._wakeup.recv(4096)
                    self._look()
                elif key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    if request := self._fork(connection):
                        return request
                else:  # a stub has ended
                    self._selector.unregister(key.fileobj)
                    for program, stub in self._programs.items():
                        if stub is key.fileobj:
                            _kill_group(program)

    def _look(self) -> None:
        """Tells stubs which programs have ended or stopped."""
        events = os.WEXITED | os.WSTOPPED | os.WNOHANG
        while self._programs and (end := os.waitid(os.P_ALL, 0, events | os.WNOWAIT)):
            if end.si_code == os.CLD_STOPPED:
                message = f"stopped {end.si_status}\n"
            else:
                _kill_group(end.si_pid)  # what it has started
                code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
                message = f"ended {code}\n"
            os.waitid(os.P_PID, end.si_pid, events)
            with suppress(OSError):
                self._programs[end.si_pid].sendall(message.encode())
            if end.si_code != os.CLD_STOPPED:
                stub = self._programs.pop(end.si_pid)
                with suppress(KeyError):
                    self._selector.unregister(stub)
                stub.close()

    def _fork(self, connection: socket.socket) -> dict[str, Any] | None:
        """Starts a program. Returns its request in the fork, None in the server."""
        import selectors

        try:
            header, streams, *_ = socket.recv_fds(connection, _LENGTH.size, 3)
            (length,) = _LENGTH.unpack(header)
            request = json.loads(connection.recv(length, socket.MSG_WAITALL))
        except (OSError, struct.error, ValueError):  # the stub was killed
            connection.close()
            return None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        request |= {"stub": struct.unpack("3i", credentials)[0], "streams": streams}
        if (program := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for held in (
                self._listener,
                self._wakeup,
                self._writer,
                connection,
                *self._programs.values(),
            ):
                held.close()
            return request
        for stream in streams:
            os.close(stream)
        self._programs[program] = connection
        self._selector.register(connection, selectors.EVENT_READ)
        with suppress(OSError):
            connection.sendall(f"{program}\n".encode())
        return None


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _imitate(request: dict[str, Any]) -> None:
    """Gives this process what the stub has."""
    import resource
    import tempfile

    import numpy as np

    for number, stream in enumerate(request["streams"]):
        os.dup2(stream, number)
        os.close(stream)
    stub = request["stub"]
    os.setsid()
    folder = os.readlink(f"/proc/{stub}/cwd")
    os.sched_setaffinity(0, os.sched_getaffinity(stub))
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, stub))
    for limit in {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}:
        resource.setrlimit(limit, resource.prlimit(stub, limit))
    _enter_namespaces(stub)
    os.chdir(folder)
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    _open_streams()
    tempfile.tempdir = None
    np.random.seed()  # or all programs had the server's state


def _enter_namespaces(process: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for kind in _NAMESPACES:
        theirs = f"/proc/{process}/ns/{kind}"
        if os.readlink(theirs) == os.readlink(f"/proc/self/ns/{kind}"):
            continue
        namespace = os.open(theirs, os.O_RDONLY)
        if libc.setns(namespace, 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {theirs}")
        os.close(namespace)


def _open_streams() -> None:
    """Makes sys.stdin, stdout and stderr as Python does with these variables."""
    import io

    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding or "utf-8", closefd=False)  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = open(number, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            raw,
            encoding=encoding or "utf-8",
            errors="backslashreplace" if number == 2 else errors or "strict",
            line_buffering=unbuffered or number == 2 or os.isatty(number),
            write_through=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(arguments: list[str], path: list[str]) -> None:
    """Runs a program as ``python ARGUMENTS`` does. ``path``: the installed packages."""
    import runpy
    import types

    first, *others = arguments
    where = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if entry]
    sys.path[:] = [*where, *path]
    if first == "-m":
        sys.argv[:] = ["-m", *others[1:]]
        sys.path.insert(0, os.getcwd())
        sys.modules.pop(f"{others[0]}.__main__", None)  # else runpy warns of it
        runpy._run_module_as_main(others[0])
        return
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if first == "-c":
        sys.argv[:] = ["-c", *others[1:]]
        sys.path.insert(0, "")
        exec(compile(others[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = [first, *others]
        sys.path.insert(0, os.path.dirname(os.path.realpath(first)))
        main.__file__ = os.path.abspath(first)
        with open(first, "rb") as file:
            source = file.read()
        exec(compile(source, first, "exec"), main.__dict__)


def _serve(listener: socket.socket) -> None:
    import gc
    import importlib

    given = os.environ.get("PYTHONPATH", "").split(":")
    path = [entry for entry in sys.path[1:] if entry not in given]  # [0]: this file's folder
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    gc.set_threshold(GARBAGE)
    request = _Server(listener).wait()
    _imitate(request)
    _run(request["arguments"], path)


def make_room(function: Any) -> None:
    """Lets what this function calls have some thousand frames in one piece of memory.

    CPython 3.11 and 3.12 keep frames in chunks of 16 KiB. A call that needs another chunk maps it
    and unmaps it when it ends, so a loop at an unlucky depth takes up to a thousand times as long
    (python/cpython#142183). A frame of half a mebibyte gets a chunk of one, most of it never used.
    """
    function.__code__ = function.__code__.replace(co_stacksize=1 << 16)


if __name__ == "__main__":
    make_room(_run)
    _serve(socket.socket(fileno=int(sys.argv[1])))
