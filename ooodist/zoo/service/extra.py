"""The optional dependencies ``zoo`` (gRPC, protobuf) that a service and its clients need."""

from __future__ import annotations

from ooodist.errors import UserError

LEAST_GRPC = 1, 74  # as pyproject.toml says
INSTALL = "pip install 'ooodist[zoo]'"


def check() -> None:
    """Raises UserError if the extra is not installed or is too old."""
    try:
        import grpc

        from ooodist.zoo.service import zoo_pb2  # noqa: F401  checks the version of protobuf

        if tuple(map(int, grpc.__version__.split(".")[:2])) < LEAST_GRPC:
            least = ".".join(map(str, LEAST_GRPC))
            raise ImportError(
                f"the grpcio that is installed is at version {grpc.__version__}, and {least} is "
                "needed"
            )
    except Exception as error:  # each library raises its own type for an old version
        raise UserError(
            f"a zoo's service needs the extra zoo (gRPC and protobuf): {error}; install it: "
            f"{INSTALL}"
        ) from error
