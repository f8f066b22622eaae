"""One end of a transfer between two hosts.

flow.py receive ADDRESS           prints its port, and then the seconds from its asking for the
                                  bytes to the last of them
flow.py send ADDRESS PORT BYTES
"""

import socket
import sys
import time


def receive(address: str) -> None:
    """Takes one connection to ``address``."""
    server = socket.create_server((address, 0))
    print(server.getsockname()[1], flush=True)
    connection, _ = server.accept()
    buffer = bytearray(1 << 20)
    print("connected", flush=True)
    sys.stdin.readline()
    begin = time.monotonic()
    connection.sendall(b"go")
    while connection.recv_into(buffer):
        pass
    print(begin, time.monotonic(), flush=True)


def send(address: str, port: int, num_bytes: int) -> None:
    """Sends so much to ``address`` and ``port`` when it is asked for."""
    connection = socket.create_connection((address, port))
    connection.recv(2)
    connection.sendall(bytes(num_bytes))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
