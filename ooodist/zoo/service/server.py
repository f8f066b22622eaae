"""Serves a zoo over gRPC, for machines that do not share a file system.

zoo.proto defines the calls, calls.py implements them, and guard.py decides who may call.
"""

from __future__ import annotations

import getpass
import resource
import secrets
import signal
import ssl
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import grpc

from ooodist.errors import UserError
from ooodist.util.quantity import counted
from ooodist.zoo.service.addresses import host_of, is_loopback
from ooodist.zoo.service.calls import Calls
from ooodist.zoo.service.guard import Guard
from ooodist.zoo.service.limits import MESSAGE_BYTES, Limits
from ooodist.zoo.service.rpc import handlers
from ooodist.zoo.service.tokens import Tokens, check_private, check_tokens, read_tokens
from ooodist.zoo.zoo import Zoo

REFUSING = 16  # extra threads, which refuse calls above the limit


@dataclass(frozen=True)
class Service:
    """A running service of a zoo, as returned by :func:`serve`.

    Attributes:
        address: ``host:port``, with the actual port if 0 was given.
    """

    address: str
    _server: grpc.Server
    _pool: ThreadPoolExecutor

    def stop(self, seconds: float = 5.0) -> None:
        """Refuses new calls, and ends those still running after so many seconds."""
        self._server.stop(seconds).wait()
        self._pool.shutdown(wait=False)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve(
    zoo: Zoo,
    address: str = "127.0.0.1:7077",
    *,
    tokens: Mapping[str, str],
    admins: Collection[str] = (),
    certificate: Path | None = None,
    key: Path | None = None,
    limits: Limits | None = None,
) -> Service:
    """Starts serving a zoo in background threads.

    Args:
        zoo: the zoo, which the caller must close.
        address: ``host:port``; port 0 picks a free one.
        tokens: user by token.
        admins: users who may evict models.
        certificate, key: PEM files for TLS; without them, only loopback addresses are allowed.
        limits: limits for users; None for the defaults.

    Raises:
        UserError: the address, the tokens, the certificate or the key is invalid.
    """
    check_tokens(tokens)
    if (certificate is None) != (key is None):
        raise UserError("of certificate and key only one is given; TLS needs both")
    if not is_loopback(host_of(address)) and certificate is None:
        raise UserError(
            f"the zoo's address {address} can be reached from other machines, and without TLS "
            "tokens and models would travel in plain text; give a certificate and its key, or "
            "listen on 127.0.0.1"
        )
    tls = _credentials(certificate, key) if certificate and key else None
    if key is not None:
        check_private(key, f"key {key}")
    limits = limits or Limits()
    known = Tokens(dict(tokens), frozenset(admins))
    pool = ThreadPoolExecutor(limits.calls + REFUSING, thread_name_prefix="ooodist-zoo")
    server = grpc.server(
        pool,
        interceptors=[Guard(known, limits, zoo.address)],
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_concurrent_streams", 64),  # per connection
            ("grpc.server_handshake_timeout_ms", round(1000 * limits.idle)),
            ("grpc.max_connection_idle_ms", round(1000 * limits.idle)),
            ("grpc.so_reuseport", 0),  # so that a second service cannot share the port
        ],
        maximum_concurrent_rpcs=2 * limits.calls,  # some of them wait to be refused
    )
    server.add_generic_rpc_handlers(handlers(Calls(zoo, known, limits)))
    try:
        port = server.add_secure_port(address, tls) if tls else server.add_insecure_port(address)
    except RuntimeError as error:
        raise UserError(
            f"the zoo cannot be served at {address}: the port is in use, or the host is not one "
            "of this machine; give another address, or port 0 for any that is free"
        ) from error
    server.start()
    return Service(f"{address.rpartition(':')[0]}:{port}", server, pool)


def serve_forever(
    zoo: Zoo,
    address: str,
    tokens_file: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
) -> None:
    """Serves a zoo until SIGINT or SIGTERM; prints the address.

    Without a file of tokens, it makes a token for this run and prints it.

    Raises:
        UserError: as :func:`read_tokens` and :func:`serve`.
    """
    made = None
    if tokens_file is None:
        made, user = secrets.token_urlsafe(32), getpass.getuser()
        tokens = Tokens({made: user}, frozenset({user}))
    else:
        tokens = read_tokens(tokens_file)
    users, admins = tokens.users, tokens.admins
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection takes a file
    service = serve(zoo, address, tokens=users, admins=admins, certificate=certificate, key=key)
    ended: SimpleQueue[None] = SimpleQueue()  # a signal handler must not set an Event
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.put(None))
    with service:
        print(
            f"zoo {zoo.address} with {counted(len(zoo.list()), 'model')} is served at "
            f"{service.address}, {'with' if certificate else 'without'} TLS; Ctrl-C ends it"
        )
        if made is not None:
            print(
                f"token for this run: {made}\n"
                "clients find it in the environment variable OOODIST_ZOO_TOKEN; for tokens that "
                "stay, give a file with lines `user: token` that only you can read"
            )
        sys.stdout.flush()
        ended.get()
    print("the zoo is no longer served", flush=True)


def _credentials(certificate: Path, key: Path) -> grpc.ServerCredentials:
    try:
        # gRPC would accept anything and then refuse every client.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password=lambda: "")
        pair = (key.read_bytes(), certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"certificate {certificate} and key {key} cannot be used: {error}; they must be PEM "
            "files that belong together, the key without a password"
        ) from error
    return grpc.ssl_server_credentials([pair])
