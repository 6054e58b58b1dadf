"""The service's remote procedures over gRPC, with grpcio: sockets, tokens, statuses, health and reflection."""
