"""The calls of zoo.proto for gRPC, made from its descriptor.

To gRPC each call is a stream of requests and a stream of answers; zoo_pb2.py has the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from ooodist.zoo.service import messages, zoo_pb2

CALLS: dict[str, tuple[Any, Any]] = {
    method.name: tuple(
        getattr(zoo_pb2, kind.name) for kind in (method.input_type, method.output_type)
    )
    for method in zoo_pb2.DESCRIPTOR.services_by_name["Zoo"].methods
}
"""For each call, the messages that are asked and answered."""

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
"""The standard health check of gRPC, which launchers and load balancers call."""


def caller(
    channel: grpc.Channel, name: str, read: Callable[[bytes], Any] | None = None
) -> Callable[..., grpc.Call]:
    """Makes what calls a service: with the requests, and the options of gRPC.

    Args:
        channel: to the service.
        name: of the call.
        read: makes an answer of its bytes; None: the message.
    """
    asked, answered = CALLS[name]
    call: Callable[..., grpc.Call] = channel.stream_stream(
        f"/{messages.SERVICE}/{name}", asked.SerializeToString, read or answered.FromString
    )
    return call


def handlers(calls: object) -> list[grpc.GenericRpcHandler]:
    """Makes what handles each call by the method of that name, of (requests, context)."""
    known = {f"/{messages.SERVICE}/{name}": kinds for name, kinds in CALLS.items()}
    known[HEALTH_CHECK] = zoo_pb2.HealthCheckRequest, zoo_pb2.HealthCheckResponse
    made = []
    for path, (asked, answered) in known.items():
        _, service, name = path.split("/")
        handler = grpc.stream_stream_rpc_method_handler(
            getattr(calls, name), asked.FromString, answered.SerializeToString
        )
        made.append(grpc.method_handlers_generic_handler(service, {name: handler}))
    return made
