"""A zoo as a gRPC service, and its client."""
