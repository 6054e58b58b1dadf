"""The server's side of HTTP/2 (RFC 9113), as far as gRPC needs it. Knows nothing of gRPC, nor of what is served."""
