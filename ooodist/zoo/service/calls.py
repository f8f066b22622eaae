"""What the zoo's service does in each call; see messages.py for what travels.

Each call needs a token, and the token says who asks: what a client claims to be is not looked at. A
file that arrives is kept outside of the zoo until it is whole and its sum is right; then
:meth:`Zoo.add` looks into it. It has no name there: neither a call that fails nor a service that is
killed leaves anything behind.

All calls are streams for gRPC: so it hands over the messages one by one, and a client that nobody
knows, or that sends nothing, does not keep a thread waiting for a message.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import grpc

from ooodist.errors import UserError
from ooodist.zoo.entry import Entry
from ooodist.zoo.full_disk import is_disk_full
from ooodist.zoo.service import messages
from ooodist.zoo.service.idle_timeout import IdleTimeout
from ooodist.zoo.service.limits import BusyError, Limits, Places
from ooodist.zoo.service.tokens import Tokens
from ooodist.zoo.zoo import Zoo, may_use

logger = logging.getLogger("ooodist")

_ID = re.compile(r"[0-9A-Za-z_-]{1,128}")
_DETAIL_LETTERS = 1000  # of an error: they travel in a header, which must be short


@dataclass(frozen=True)
class Caller:
    """A client in the middle of a call.

    Attributes:
        user: who it is.
        requests: its messages.
        context: of the call.
        timeout: seconds that it may take for a message.
    """

    user: str
    requests: Iterator[bytes]
    context: grpc.ServicerContext
    timeout: float

    def watch(self) -> IdleTimeout:
        """Ends the call if the client is too slow to send or take a message."""
        return IdleTimeout(self.timeout, self.context.cancel)

    def next(self) -> bytes:
        """Its next message."""
        with self.watch():
            message = next(self.requests, None)
        if message is None:
            raise UserError("the call ended before all messages came")
        return message


Call = Callable[[Caller], Iterator[bytes]]


class Calls(grpc.GenericRpcHandler):
    """Answers the calls of clients.

    Args:
        zoo: in which they look, and which stays the caller's to close.
        tokens: of those who may call.
        limits: that users have.
    """

    def __init__(self, zoo: Zoo, tokens: Tokens, limits: Limits) -> None:
        self._zoo = zoo
        self._tokens = tokens
        self._limits = limits
        self._places = Places("calls", limits.calls, limits.calls_of_user)
        self._uploads = Places("uploads", limits.uploads, limits.uploads_of_user)
        self._calls: dict[str, Call] = {
            f"/{messages.SERVICE}/Query": self._query,
            f"/{messages.SERVICE}/Fetch": self._fetch,
            f"/{messages.SERVICE}/Register": self._register,
            f"/{messages.SERVICE}/List": self._list,
            f"/{messages.SERVICE}/Evict": self._evict,
        }

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """What gRPC asks for each call; None: there is no such call."""
        call = self._calls.get(details.method)
        return call and grpc.stream_stream_rpc_method_handler(partial(self._answer, call))

    def _answer(
        self, call: Call, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        try:
            given = dict(context.invocation_metadata()).get("authorization", "")
            caller = Caller(self._user(given), requests, context, self._limits.timeout)
            with self._places.taken_by(caller.user):
                for answer in call(caller):
                    with caller.watch():
                        yield answer  # goes on once the network has taken it
        except grpc.RpcError:
            return  # the client has gone
        except _RefusedError as error:
            context.abort(error.code, self._public(error))
        except BusyError as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except Exception as error:
            if is_disk_full(error):
                logger.error("the disk of the zoo's service is full: %s", error)
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the service's disk is full")
            if isinstance(error, UserError) and not isinstance(error.__cause__, sqlite3.Error):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, self._public(error))
            logger.exception("the zoo's service failed in a call")
            context.abort(grpc.StatusCode.INTERNAL, "the service failed; its log says why")

    def _user(self, given: str | bytes) -> str:
        """Whose token it is. All are compared, in a time that does not tell how much is right."""
        header = given if isinstance(given, bytes) else given.encode()
        found = None
        for token, user in self._tokens.users.items():
            if hmac.compare_digest(header, f"Bearer {token}".encode()):
                found = user
        if found is None:
            raise _RefusedError(
                grpc.StatusCode.UNAUTHENTICATED,
                "the token is not one of this service" if given else "the service needs a token",
            )
        return found

    def _public(self, error: Exception) -> str:
        """The message without what the client has no business to know."""
        text = str(error)
        for place in (self._zoo.address, os.path.abspath(self._zoo.address)):
            if re.match(r"/.|\w+://", place):  # and not a single word, which may be in any text
                text = text.replace(place, "the zoo")
        return text[:_DETAIL_LETTERS]

    def _query(self, caller: Caller) -> Iterator[bytes]:
        asked = messages.read(messages.Query, caller.next())
        outline = messages.read_outline(caller.next())
        wanted = replace(asked.wanted, user=caller.user)
        for found in self._zoo.query(outline, wanted, asked.count):
            yield messages.encode(found, messages.ANSWER_BYTES)

    def _fetch(self, caller: Caller) -> Iterator[bytes]:
        model = messages.read(messages.Model, caller.next()).id
        if not may_use(self._entry(model).meta, caller.user):
            raise _no_model(model)  # not even that it is there is the user's business
        with self._zoo.open(model) as file:
            size = self._zoo.size(model)
            sent = hashlib.sha256()
            yield messages.encode(messages.Size(size))
            for chunk in messages.chunks(file, size):
                sent.update(chunk)
                yield chunk
            yield messages.encode(messages.Sum(sent.hexdigest()))

    def _register(self, caller: Caller) -> Iterator[bytes]:
        upload = messages.read(messages.Upload, caller.next())
        if not 0 < upload.bytes <= self._limits.file_bytes:
            raise UserError(
                f"the file has {upload.bytes} bytes; 1 to {self._limits.file_bytes} are allowed"
            )
        with self._uploads.taken_by(caller.user):
            added = self._receive(caller, upload)
        logger.info("%s registered model %s", caller.user, added)
        yield messages.encode(messages.Model(added))

    def _receive(self, caller: Caller, upload: messages.Upload) -> str:
        with tempfile.TemporaryFile() as file:
            with caller.watch() as watch:
                found = messages.receive(caller.requests, upload.bytes, file, watch.moved)
                if next(caller.requests, None) is not None:
                    raise UserError(f"more came than the {upload.bytes} bytes declared")
            if found != upload.sha256:
                raise UserError(
                    f"the SHA-256 sum of what arrived is {found}, not {upload.sha256} as "
                    "declared; send it again"
                )
            return self._zoo.add(file)

    def _list(self, caller: Caller) -> Iterator[bytes]:
        caller.next()
        for row in self._zoo.list():
            if caller.user in self._tokens.admins or may_use(row.meta, caller.user):
                yield messages.encode(row, messages.ANSWER_BYTES)

    def _evict(self, caller: Caller) -> Iterator[bytes]:
        model = messages.read(messages.Model, caller.next()).id
        if caller.user not in self._tokens.admins:
            raise _RefusedError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{caller.user} may not evict models; ask one of the service's admins",
            )
        self._entry(model)
        self._zoo.evict(model)
        logger.info("%s evicted model %s", caller.user, model)
        yield messages.encode({})

    def _entry(self, model: str) -> Entry:
        try:
            if _ID.fullmatch(model):
                return self._zoo.entry(model)
        except UserError:
            pass
        raise _no_model(model)


class _RefusedError(Exception):
    """A call is refused for another reason than that its messages are wrong."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def _no_model(model: str) -> _RefusedError:
    reason = f"there is no model {model[:128]!r}; list shows those there are"
    return _RefusedError(grpc.StatusCode.NOT_FOUND, reason)
