"""The client side of the zoo's service; see zoo.proto."""

from __future__ import annotations

import itertools
import re
import ssl
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np

from ooodist.errors import UserError
from ooodist.transfer.graph.operators import Outline
from ooodist.util.digest import file_digest
from ooodist.zoo import entry as entries
from ooodist.zoo.entry import Entry
from ooodist.zoo.service import messages, zoo_pb2
from ooodist.zoo.service.addresses import host_of, is_loopback
from ooodist.zoo.service.idle_timeout import IdleTimeout
from ooodist.zoo.service.limits import LARGEST_BYTES, MESSAGE_BYTES
from ooodist.zoo.service.rpc import CALLS, caller
from ooodist.zoo.service.tokens import TOKEN_VARIABLE
from ooodist.zoo.service.unavailable import ZooUnavailable
from ooodist.zoo.zoo import Found, Row, Wanted

Request = TypeVar("Request")
Response = TypeVar("Response")

_STARTING_SECONDS = 5.0  # of the process that checks an upload, on a busy machine
_CHECKED_BYTES_PER_SECOND = 20 * 2**20  # rate at which a slow service checks an upload
_UNREACHABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


class Remote:
    """A zoo behind a service; takes the arguments of :class:`ZooClient`."""

    def __init__(
        self, address: str, token: str | None, certificate: Path | None, timeout: float
    ) -> None:
        host = host_of(address)
        if token is not None and not re.fullmatch("[!-~]+", token):
            raise UserError(
                "the token of the zoo has blanks or other than plain letters, digits and signs; "
                f"give it as the service has it, or in {TOKEN_VARIABLE}"
            )
        self._address = address
        self._token = token
        self._timeout = timeout
        options = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_reconnect_backoff_ms", 1000),  # by default two minutes, after an outage
        ]
        if certificate is not None:
            self._channel = grpc.secure_channel(address, _credentials(certificate), options)
        elif is_loopback(host):
            # A proxy would be another machine, which must not see the token.
            options.append(("grpc.enable_http_proxy", 0))
            self._channel = grpc.insecure_channel(address, options)
        else:
            raise UserError(
                f"the zoo at {address} is on another machine, and a token must not travel in plain "
                "text; give the certificate of the service, or of who signed it"
            )

    def query(self, outline: Outline, wanted: Wanted, count: int) -> list[Found]:
        request = messages.query_request(outline, wanted, count)
        return [messages.found_of(each) for each in self._call("Query", [request])]

    def fetch(self, model: str) -> tuple[Entry, dict[str, np.ndarray]]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.keras"
            self._download(model, file)
            try:
                return entries.read_with_weights(file)
            except UserError as error:  # the temporary file will be gone by then
                text = str(error).replace(str(file), f"{model} of the zoo at {self._address}")
                raise UserError(text) from error

    def upload(self, file: Path) -> str:
        size = file.stat().st_size
        with file.open("rb") as content:
            upload = zoo_pb2.Upload(size=size, sha256=file_digest(content))
            content.seek(0)
            asked = itertools.chain(
                [zoo_pb2.RegisterRequest(upload=upload)],
                (zoo_pb2.RegisterRequest(chunk=chunk) for chunk in messages.chunks(content, size)),
            )
            seconds = _STARTING_SECONDS + size / _CHECKED_BYTES_PER_SECOND
            with closing(self._call("Register", asked, seconds)) as answers:
                return messages.checked_id(self._next(answers).id)

    def list(self) -> list[Row]:
        answers = self._call("List", [zoo_pb2.ListRequest()])
        return [messages.row_of(each) for each in answers]

    def evict(self, model: str) -> None:
        request = messages.made(zoo_pb2.EvictRequest, id=model)
        for _ in self._call("Evict", [request]):
            pass

    def close(self) -> None:
        self._channel.close()

    def _download(self, model: str, file: Path) -> None:
        asked = [messages.made(zoo_pb2.FetchRequest, id=model)]
        with file.open("wb") as content, closing(self._call("Fetch", asked)) as answers:
            size = self._next(answers).size
            if not 0 < size <= LARGEST_BYTES:
                raise UserError(
                    f"model {model} has {size} bytes, which is no size that a model of a zoo has"
                )
            found = messages.receive(answers, size, content)
            if found != self._next(answers).sha256:
                raise UserError(f"model {model} was damaged on its way; fetch it again")

    def _next(self, answers: Iterator[Response]) -> Response:
        answer = next(answers, None)
        if answer is None:
            raise UserError(f"the zoo at {self._address} ended its answer early; see its log")
        return answer

    def _call(
        self,
        name: str,
        asked: Iterable[Request],
        last_seconds: float = 0.0,
    ) -> Generator[Any, None, None]:
        """Sends messages and yields the answers.

        Args:
            name: name of the call in zoo.proto.
            asked: messages to send.
            last_seconds: extra seconds for the answer to the last message.
        """

        def read(content: bytes) -> Any:
            # Where this raises, gRPC logs the traceback and says that the service has failed.
            _, answered = CALLS[name]
            try:
                return messages.parsed(answered.FromString, content, MESSAGE_BYTES)
            except UserError as error:
                return error

        def sent() -> Iterator[Request]:
            for message in asked:
                watch.moved()
                yield message  # gRPC asks for the next one once the network has taken this one
            watch.moved(last_seconds)

        watch = IdleTimeout(self._timeout, lambda: call.cancel())
        metadata = (("authorization", f"Bearer {self._token}"),) if self._token else ()
        call = caller(self._channel, name, read)(sent(), metadata=metadata)
        with watch:
            try:
                for answer in call:
                    watch.moved()
                    if isinstance(answer, UserError):
                        raise answer
                    yield answer
            except grpc.RpcError as error:
                raise self._error(error, watch.expired) from error
            finally:
                call.cancel()

    def _error(self, error: grpc.RpcError, expired: bool) -> UserError:
        where = f"the zoo at {self._address}"
        details = "".join(c if c.isprintable() else " " for c in error.details() or "no reason")
        code = error.code()
        if expired:
            return ZooUnavailable(
                f"{where} did not go on for {self._timeout:g} s; check that the service runs and "
                "that the network lets it through, or give a longer timeout"
            )
        if code in _UNREACHABLE:
            return ZooUnavailable(
                f"{where} cannot be reached ({details}); check the address, that the service runs, "
                "and that both or neither have a certificate, the same one or one signed by it"
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return UserError(
                f"what listens at {self._address} is no zoo of this ooodist ({details}); check the "
                "address, and that the service and its clients have the same version of ooodist"
            )
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return UserError(
                f"{where} says: {details}; give your token of the service as token, or in the "
                f"environment variable {TOKEN_VARIABLE}"
            )
        return UserError(f"{where} says: {details}")


def _credentials(certificate: Path) -> grpc.ChannelCredentials:
    try:
        ssl.create_default_context(cafile=certificate)  # gRPC itself would just fail to connect
        return grpc.ssl_channel_credentials(certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"certificate {certificate} cannot be used: {error}; it must be a PEM file"
        ) from error
