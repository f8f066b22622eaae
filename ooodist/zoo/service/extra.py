"""The optional dependencies ``zoo`` (gRPC, protobuf) that a service and its clients need."""

from __future__ import annotations

from ooodist.errors import UserError

INSTALL = "pip install 'ooodist[zoo]'"


def check() -> None:
    """Raises UserError if the extra is not installed or is too old."""
    try:
        from ooodist.zoo.service import zoo_pb2_grpc  # noqa: F401
    except Exception as error:  # each library raises its own type for an old version
        raise UserError(
            f"a zoo's service needs the extra zoo (gRPC and protobuf): {error}; install it: "
            f"{INSTALL}"
        ) from error
