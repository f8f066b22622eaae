"""Authentication, limits and error reporting for all calls of the zoo's service.

Each call but the health check needs a token, which identifies the user; nothing else that a client
claims is believed. Those who check the health count as one user.
To gRPC all calls are streams: it delivers messages one at a time, so the token is checked before
any message is awaited, and a silent client does not keep a thread forever.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from ooodist.errors import UserError
from ooodist.zoo.full_disk import is_disk_full
from ooodist.zoo.service import messages
from ooodist.zoo.service.idle_timeout import IdleTimeout
from ooodist.zoo.service.limits import BusyError, Limits, Places, request_bytes
from ooodist.zoo.service.rpc import HEALTH_CHECK
from ooodist.zoo.service.tokens import Tokens

T = TypeVar("T")

logger = logging.getLogger("ooodist")

_DETAIL_LETTERS = 1000  # of an error message, which travels in a short header


class RefusedError(Exception):
    """A call is refused for a reason other than an invalid message."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class Caller:
    """A client during a call; the service's methods receive it as their context.

    Attributes:
        user: name of the user, according to the token.
        cancel: function that ends the call.
        timeout: seconds that the client may take per message.
    """

    user: str
    cancel: Callable[[], object]
    timeout: float

    def watch(self) -> IdleTimeout:
        """A watchdog that ends the call if the client takes too long for a message."""
        return IdleTimeout(self.timeout, self.cancel)

    def next(self, requests: Iterator[T]) -> T:
        """The next message of the client. Raises UserError if there is none."""
        with self.watch():
            message = next(requests, None)
        if message is None:
            raise UserError("the call ended before all messages came")
        return message


class Guard(grpc.ServerInterceptor):
    """Intercepts all calls to check tokens, enforce limits and report errors.

    Args:
        tokens: tokens of the users.
        limits: limits on concurrent calls, and the timeout.
        address: address of the zoo, which is kept out of error messages.
    """

    def __init__(self, tokens: Tokens, limits: Limits, address: str) -> None:
        self._tokens = tokens
        self._limits = limits
        self._address = address
        self._places = Places("calls", limits.calls, limits.calls_of_user)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """The handler of a call, wrapped in the checks; None if there is no such call."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        most = request_bytes(method.rpartition("/")[2])
        # No deserializer: gRPC would report a damaged message as an error of the service.
        return grpc.stream_stream_rpc_method_handler(
            partial(self._answer, handler, most, method == HEALTH_CHECK),
            response_serializer=handler.response_serializer,
        )

    def _answer(
        self,
        handler: grpc.RpcMethodHandler,
        most: int,
        is_health_check: bool,
        arriving: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> Iterator[Message]:
        try:
            given = dict(context.invocation_metadata()).get("authorization", "")
            user = HEALTH_CHECK if is_health_check else self._user(given)
            caller = Caller(user, context.cancel, self._limits.timeout)
            parse = handler.request_deserializer
            requests = (messages.parsed(parse, message, most) for message in arriving)
            with self._places.taken_by(caller.user):
                for answer in handler.stream_stream(requests, caller):
                    with caller.watch():
                        yield answer  # resumes once the network has taken it
        except grpc.RpcError:
            return  # the client has gone
        except RefusedError as error:
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
        """The user of a token, compared with all tokens in constant time."""
        header = given if isinstance(given, bytes) else given.encode()
        found = None
        for token, user in self._tokens.users.items():
            if hmac.compare_digest(header, f"Bearer {token}".encode()):
                found = user
        if found is None:
            raise RefusedError(
                grpc.StatusCode.UNAUTHENTICATED,
                "the token is not one of this service" if given else "the service needs a token",
            )
        return found

    def _public(self, error: Exception) -> str:
        """The error message without the address of the zoo, shortened."""
        text = str(error)
        for place in (self._address, os.path.abspath(self._address)):
            if re.match(r"/.|\w+://", place):  # but no single word, which any text may contain
                text = text.replace(place, "the zoo")
        return text[:_DETAIL_LETTERS]
