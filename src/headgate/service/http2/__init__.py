"""The server's side of HTTP/2 (RFC 9113), as far as gRPC needs it. It knows neither gRPC nor the application."""
