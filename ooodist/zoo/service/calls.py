"""Implements each call of zoo.proto, for callers that guard.py has admitted.

An uploaded file stays outside the zoo until it is complete and its checksum matches; then its
content is checked, in a process of its own (checking.py). It is an unnamed temporary file, so
neither a failed call nor a killed service leaves anything behind.
"""

from __future__ import annotations

import hashlib
import logging
import re
import tempfile
from collections.abc import Iterator

import grpc

from ooodist.errors import UserError
from ooodist.zoo.entry import Meta
from ooodist.zoo.service import checking, messages, zoo_pb2
from ooodist.zoo.service.guard import Caller, RefusedError
from ooodist.zoo.service.limits import Limits, Places, Turns
from ooodist.zoo.service.tokens import Tokens
from ooodist.zoo.zoo import Zoo, may_use

logger = logging.getLogger("ooodist")

_ID = re.compile(r"[0-9A-Za-z_-]{1,128}")


class Calls:
    """Handles the calls of clients.

    Args:
        zoo: the zoo to serve, which the caller must close.
        tokens: tokens and admins of the service.
        limits: limits for users and their uploads.
    """

    def __init__(self, zoo: Zoo, tokens: Tokens, limits: Limits) -> None:
        self._zoo = zoo
        self._tokens = tokens
        self._limits = limits
        self._uploads = Places("uploads", limits.uploads, limits.uploads_of_user)
        self._turns = Turns()

    def Query(
        self, request_iterator: Iterator[zoo_pb2.QueryRequest], context: Caller
    ) -> Iterator[zoo_pb2.QueryResponse]:
        """Finds the models most similar to a new one."""
        request = context.next(request_iterator)
        with self._turns.of(context.user):
            found = self._zoo.query(*messages.query_of(request, context.user))
        yield from map(messages.query_response, found)

    def Fetch(
        self, request_iterator: Iterator[zoo_pb2.FetchRequest], context: Caller
    ) -> Iterator[zoo_pb2.FetchResponse]:
        """Sends the file of a model."""
        model = context.next(request_iterator).id
        with self._turns.of(context.user):
            meta = self._meta(model)
        if not may_use(meta, context.user):
            raise _no_model(model)  # hides even that it exists
        with self._zoo.open(model) as file:
            size = self._zoo.size(model)
            sent = hashlib.sha256()
            yield zoo_pb2.FetchResponse(size=size)
            for chunk in messages.chunks(file, size):
                sent.update(chunk)
                yield zoo_pb2.FetchResponse(chunk=chunk)
            yield zoo_pb2.FetchResponse(sha256=sent.hexdigest())

    def Register(
        self, request_iterator: Iterator[zoo_pb2.RegisterRequest], context: Caller
    ) -> Iterator[zoo_pb2.RegisterResponse]:
        """Receives the file of a model and adds it to the zoo."""
        request = context.next(request_iterator)
        if not request.HasField("upload"):
            raise UserError("the first message must say what is uploaded")
        upload = request.upload
        if not 0 < upload.size <= self._limits.file_bytes:
            raise UserError(
                f"the file has {upload.size} bytes; 1 to {self._limits.file_bytes} are allowed"
            )
        messages.check_sha256(upload.sha256)
        with self._uploads.taken_by(context.user):
            added = self._receive(request_iterator, context, upload)
        logger.info("%s registered model %s", context.user, added)
        yield zoo_pb2.RegisterResponse(id=added)

    def _receive(
        self, requests: Iterator[zoo_pb2.RegisterRequest], caller: Caller, upload: zoo_pb2.Upload
    ) -> str:
        with tempfile.TemporaryFile() as file:
            with caller.watch() as watch:
                found = messages.receive(requests, upload.size, file, watch.moved)
                if next(requests, None) is not None:
                    raise UserError(f"more came than the {upload.size} bytes declared")
            if found != upload.sha256:
                raise UserError(
                    f"the SHA-256 sum of what arrived is {found}, not {upload.sha256} as "
                    "declared; send it again"
                )
            return self._zoo.add(file, check=checking.check)

    def List(
        self, request_iterator: Iterator[zoo_pb2.ListRequest], context: Caller
    ) -> Iterator[zoo_pb2.ListResponse]:
        """Lists the models that the user may use, or all of them for an admin."""
        context.next(request_iterator)
        is_admin = context.user in self._tokens.admins
        with self._turns.of(context.user):
            rows = [row for row in self._zoo.list() if is_admin or may_use(row.meta, context.user)]
        yield from map(messages.list_response, rows)

    def Evict(
        self, request_iterator: Iterator[zoo_pb2.EvictRequest], context: Caller
    ) -> Iterator[zoo_pb2.EvictResponse]:
        """Removes a model, for admins only."""
        model = context.next(request_iterator).id
        if context.user not in self._tokens.admins:
            raise RefusedError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{context.user} may not evict models; ask one of the service's admins",
            )
        self._meta(model)
        self._zoo.evict(model)
        logger.info("%s evicted model %s", context.user, model)
        yield zoo_pb2.EvictResponse()

    def Check(
        self, request_iterator: Iterator[zoo_pb2.HealthCheckRequest], context: Caller
    ) -> Iterator[zoo_pb2.HealthCheckResponse]:
        """Tells whether the service can be used, as far as that takes no time."""
        service = context.next(request_iterator).service
        if service not in ("", messages.SERVICE):
            raise RefusedError(grpc.StatusCode.NOT_FOUND, f"only {messages.SERVICE} is served")
        status = zoo_pb2.SERVING if self._zoo.is_there else zoo_pb2.NOT_SERVING
        yield zoo_pb2.HealthCheckResponse(status=status)

    def _meta(self, model: str) -> Meta:
        try:
            if _ID.fullmatch(model):
                return self._zoo.meta(model)
        except UserError:
            pass
        raise _no_model(model)


def _no_model(model: str) -> RefusedError:
    reason = f"there is no model {model[:128]!r}; list shows those there are"
    return RefusedError(grpc.StatusCode.NOT_FOUND, reason)
