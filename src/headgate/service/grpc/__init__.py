"""gRPC over `headgate.service.http2`: the service's remote procedures on a port."""
