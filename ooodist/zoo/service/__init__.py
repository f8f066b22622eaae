"""A gRPC service that shares a zoo, and its client."""
