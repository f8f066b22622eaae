"""A network for one job: only loopback, and unreachable for other processes on any machine.

TensorFlow's server listens on all networks and lets whoever reaches it run programs as its user.
In a network namespace of the job's own nobody else can reach it. The job cannot reach out, either.

``python -m ooodist.launcher.private_network COMMAND ...`` runs any command like this, for example
mpirun, which listens on all networks whatever its options.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # <sched.h>
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # <linux/sockios.h>, <linux/if.h>


def enter() -> None:
    """Moves this process, and what it starts from now on, into a new network.

    Call it before the process has a second thread. Open sockets stay in the old network. Without
    root it needs user namespaces, in which set-user-id programs such as sudo fail.

    Raises:
        OSError: the system does not allow it; nothing has changed.
    """
    # Try in a child first: a system may allow the namespace and then refuse to set it up.
    child = os.fork()
    if child == 0:
        code = errno.EPERM
        try:
            _enter()
            code = 0
        except OSError as error:
            code = error.errno or errno.EPERM
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, os.strerror(code))
    _enter()


def _enter() -> None:
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWNET if user == 0 else CLONE_NEWNET | CLONE_NEWUSER
    # os.unshare is new in Python 3.12.
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    if flags & CLONE_NEWUSER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", IFF_UP))


if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        sys.exit()
    given = " ".join(sys.argv[1:])
    if not given or given.startswith("-"):
        sys.stderr.write(
            f"ooodist: error: the command to run is {given or 'missing'}; give a program and its "
            "arguments, as python -m ooodist.launcher.private_network mpirun -np 2 …\n"
        )
        sys.exit(2)
    try:
        enter()
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.exit(f"ooodist: error: {' '.join(sys.argv)}: {error.strerror}")
