"""gRPC over `headgate.service.h2`: the service's remote procedures on a port."""
