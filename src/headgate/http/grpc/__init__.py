"""An interceptor for grpcio servers, with threads or asyncio. Needs `headgate[grpc]`.

    server = grpc.server(threads, interceptors=[RateLimitInterceptor(limiter=Limiter(rules="rules.toml"))])
    server = grpc.aio.server(interceptors=[RateLimitInterceptor(limiter=AsyncLimiter(rules="rules.toml"))])

Streams are limited when they open. Limits are reported in trailing metadata: the handler sends the initial metadata,
which can be sent only once.
"""

try:
    import grpc.aio  # noqa: F401 - fails if grpcio is missing
except ImportError as error:
    raise ImportError("headgate.http.grpc needs grpcio: pip install 'headgate[grpc]'") from error

from headgate.http.grpc.call import GrpcRequest, GrpcResponse, current_limits
from headgate.http.grpc.interceptor import (
    HEALTH,
    AsyncRateLimitInterceptor,
    RateLimitInterceptor,
    SyncRateLimitInterceptor,
)

__all__ = [
    "HEALTH",
    "AsyncRateLimitInterceptor",
    "GrpcRequest",
    "GrpcResponse",
    "RateLimitInterceptor",
    "SyncRateLimitInterceptor",
    "current_limits",
]
