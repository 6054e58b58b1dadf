"""Traces gRPC's data plane: an interceptor for grpcio's asyncio server. Needs headgate[otel]."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from headgate.telemetry.spans import CARRIED, Tracing

SERVICES: Final = {  # those that are traced, and the protocol that they are told as
    "headgate.v1.RateLimiter": "grpc",
    "envoy.service.ratelimit.v3.RateLimitService": "envoy",
}


class TracingInterceptor(grpc.aio.ServerInterceptor):
    """Puts calls to the data plane's services into spans, in the traces that their metadata name."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        protocol = SERVICES.get(details.method.strip("/").partition("/")[0])
        if protocol is None or handler is None or handler.unary_unary is None:
            return handler
        answer = handler.unary_unary
        headers = {name: str(value) for name, value in details.invocation_metadata or () if name in CARRIED}

        async def traced(request: Any, context: Any) -> Any:
            with self._tracing.check(protocol, headers):
                return await answer(request, context)

        return grpc.unary_unary_rpc_method_handler(
            traced,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
