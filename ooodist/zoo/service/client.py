"""A zoo, wherever it is: a folder or bucket, or a service on another machine.

::

    with ZooClient("zoo.example.org:7077", certificate=Path("zoo.pem")) as zoo:
        found = zoo.find(graph, Wanted(task="image classification"))
        entry, weights = zoo.fetch(found[0].id)
"""

from __future__ import annotations

import itertools
import os
import re
import ssl
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np

from ooodist.errors import UserError
from ooodist.transfer.graph.graph import Graph
from ooodist.transfer.graph.operators import Outline, outline_of
from ooodist.zoo import entry as entries
from ooodist.zoo.entry import Entry, Meta
from ooodist.zoo.service import messages
from ooodist.zoo.service.addresses import host_of, is_address, is_loopback
from ooodist.zoo.service.idle_timeout import IdleTimeout
from ooodist.zoo.zoo import Found, Row, Wanted, Zoo

if TYPE_CHECKING:
    import keras

TOKEN_VARIABLE = "OOODIST_ZOO_TOKEN"
_SCHEME = "grpc://"
_CHECKED_BYTES_PER_SECOND = 20 * 2**20  # by a slow service, of a file that it has received
_UNREACHABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


class ZooUnavailable(UserError):
    """There is no answer from the zoo's service."""


class ZooClient:
    """Finds, fetches and registers models.

    Args:
        address: ``host:port`` or ``grpc://host:port`` of a service; or where a zoo is, as
            :class:`Zoo` takes it.
        token: for the service; if None, that in the environment variable OOODIST_ZOO_TOKEN.
        certificate: a PEM file with the certificate of the service or of who signed it. Without
            one, only a service on this machine is asked, in plain text.
        timeout: seconds for the service to answer, or to send or take up to 1 MiB.
        index: file of the index of a zoo that is not asked through a service; see :class:`Zoo`.

    Raises:
        UserError: one of these cannot be used. (Whether the service is there shows in the calls.)
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        certificate: Path | None = None,
        timeout: float = 30.0,
        index: Path | None = None,
    ) -> None:
        self._zoo: Zoo | _Remote
        service = address.removeprefix(_SCHEME)
        if service != address or is_address(service):
            token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
            self._zoo = _Remote(service, token, certificate, timeout)
        else:
            self._zoo = Zoo(address, index=index)

    def find(self, model: Graph | Outline, wanted: Wanted, count: int = 1) -> list[Found]:
        """The models that are most like this one, best first.

        Args:
            model: to be warmed up.
            wanted: which models will do. (A service fills in the user.)
            count: at most so many.

        Raises:
            UserError: the zoo or the service says no.
            ZooUnavailable: there is no answer.
        """
        outline = outline_of(model) if isinstance(model, Graph) else model
        return self._zoo.query(outline, wanted, count)

    def fetch(self, model: str) -> tuple[Entry, dict[str, np.ndarray]]:
        """What is known of the model with this id, and its weights by name. Raises as ``find``."""
        return self._zoo.fetch(model)

    def register(self, model: keras.Model, meta: Meta) -> str:
        """Puts a trained model into the zoo and returns its id. Raises as ``find``."""
        from ooodist.transfer.graph.keras_graph import graph_of  # imports TensorFlow

        graph = graph_of(model)
        if isinstance(self._zoo, Zoo):
            return self._zoo.add_model(model, meta, graph)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.keras"
            entries.write(file, model, meta, graph)
            return self._zoo.upload(file)

    def list(self) -> list[Row]:
        """The models that there are for this user. Raises as ``find``."""
        return self._zoo.list()

    def evict(self, model: str) -> None:
        """Removes a model; a service lets only its admins. Raises as ``find``."""
        self._zoo.evict(model)

    def close(self) -> None:
        """Nothing can be asked any more."""
        self._zoo.close()

    def __enter__(self) -> ZooClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Remote:
    """The calls of a service; see messages.py."""

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
        options = [("grpc.max_receive_message_length", messages.MESSAGE_BYTES)]
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
        asked = [
            messages.encode(messages.Query(wanted, count)),
            messages.encode_outline(outline),
        ]
        return [
            messages.read(Found, answer, messages.ANSWER_BYTES)
            for answer in self._call("Query", asked)
        ]

    def fetch(self, model: str) -> tuple[Entry, dict[str, np.ndarray]]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.keras"
            self._download(model, file)
            try:
                return entries.read_with_weights(file)
            except UserError as error:  # the file itself is gone when somebody reads this
                text = str(error).replace(str(file), f"{model} of the zoo at {self._address}")
                raise UserError(text) from error

    def upload(self, file: Path) -> str:
        size = file.stat().st_size
        upload = messages.encode(messages.Upload(size, messages.sha256_of(file)))
        with file.open("rb") as content:
            asked = itertools.chain([upload], messages.chunks(content, size))
            seconds = size / _CHECKED_BYTES_PER_SECOND
            with closing(self._call("Register", asked, seconds)) as answers:
                return messages.read(messages.Model, self._next(answers)).id

    def list(self) -> list[Row]:
        return [
            messages.read(Row, answer, messages.ANSWER_BYTES)
            for answer in self._call("List", [messages.encode({})])
        ]

    def evict(self, model: str) -> None:
        for _ in self._call("Evict", [messages.encode(messages.Model(model))]):
            pass

    def close(self) -> None:
        self._channel.close()

    def _download(self, model: str, file: Path) -> None:
        asked = [messages.encode(messages.Model(model))]
        with file.open("wb") as content, closing(self._call("Fetch", asked)) as answers:
            size = messages.read(messages.Size, self._next(answers)).bytes
            if not 0 < size <= messages.LARGEST_BYTES:
                raise UserError(
                    f"model {model} has {size} bytes, which is no size that a model of a zoo has"
                )
            found = messages.receive(answers, size, content)
            if found != messages.read(messages.Sum, self._next(answers)).sha256:
                raise UserError(f"model {model} was damaged on its way; fetch it again")

    def _next(self, answers: Iterator[bytes]) -> bytes:
        answer = next(answers, None)
        if answer is None:
            raise UserError(f"the zoo at {self._address} ended its answer early; see its log")
        return answer

    def _call(
        self, name: str, asked: Iterable[bytes], last_seconds: float = 0.0
    ) -> Generator[bytes, None, None]:
        """Sends messages and gives back those that come.

        Args:
            name: of the call.
            asked: messages to send.
            last_seconds: by which the answer to the last one may take longer.
        """

        def sent() -> Iterator[bytes]:
            for message in asked:
                watch.moved()
                yield message  # gRPC asks for the next one once the network has taken this one
            watch.moved(last_seconds)

        watch = IdleTimeout(self._timeout, lambda: call.cancel())
        metadata = (("authorization", f"Bearer {self._token}"),) if self._token else ()
        call = self._channel.stream_stream(f"/{messages.SERVICE}/{name}")(sent(), metadata=metadata)
        with watch:
            try:
                for answer in call:
                    watch.moved()
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
                f"what listens at {self._address} is no zoo of this ooodist: {details}"
            )
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return UserError(
                f"{where} says: {details}; give your token of the service as token, or in the "
                f"environment variable {TOKEN_VARIABLE}"
            )
        return UserError(f"{where} says: {details}")


def _credentials(certificate: Path) -> grpc.ChannelCredentials:
    try:
        ssl.create_default_context(cafile=certificate)  # gRPC would only fail to connect
        return grpc.ssl_channel_credentials(certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"certificate {certificate} cannot be used: {error}; it must be a PEM file"
        ) from error
