"""Links over gRPC."""
