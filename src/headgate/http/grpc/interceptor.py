"""RateLimitInterceptor for `grpc.server` and for `grpc.aio.server`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import grpc
import grpc.aio

from headgate.errors import InvalidRule
from headgate.http.grpc.aio import AsyncCalls
from headgate.http.grpc.call import Handler
from headgate.http.grpc.sync import SyncCalls
from headgate.http.middleware_options import CallArguments
from headgate.http.request_limiter import AsyncRequestLimiter, RequestLimiter
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.limiter.limiter import Limiter

HEALTH: Final = "/grpc.health.v1.Health/*"

if TYPE_CHECKING:

    class _Either(grpc.ServerInterceptor, grpc.aio.ServerInterceptor):
        """The base class that type checkers see: the limiter decides which of the two it really is."""

        def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any: ...

else:
    _Either = object


class RateLimitInterceptor(_Either):
    """Checks every call, and reports limits in trailing metadata.

    With a `Limiter` it is for `grpc.server`, with an `AsyncLimiter` for `grpc.aio.server`. Make it the first of a
    server's interceptors, or put it right after those that authenticate.

    The options are those of `MiddlewareOptions`, except `route` and `charge_header`. The path is the full method:
    `skip` lists patterns of methods that are not limited, by default the health service's. `defaults` is each client's
    quota on each method. Functions receive a `GrpcRequest`, and `deduct_when` a `GrpcResponse`; with an `AsyncLimiter`,
    they may be async.
    """

    def __new__(cls, *, limiter: Limiter | AsyncLimiter, **_: Any) -> Self:
        kind: Any = cls
        if cls is RateLimitInterceptor:
            kind = AsyncRateLimitInterceptor if isinstance(limiter, AsyncLimiter) else SyncRateLimitInterceptor
        made: Self = super().__new__(kind)
        return made

    def __init__(self, *, limiter: Limiter | AsyncLimiter, **options: Unpack[CallArguments]) -> None:
        options.setdefault("skip", (HEALTH,))
        route = attrgetter("path")  # the method, which has no parameters
        if isinstance(limiter, AsyncLimiter):
            asynchronous = AsyncRequestLimiter(limiter, route=route, charge_header=None, **options)
            self._calls: AsyncCalls | SyncCalls = AsyncCalls(asynchronous)
        else:
            self._calls = SyncCalls(RequestLimiter(limiter, route=route, charge_header=None, **options))
        self._options = self._calls.options


class SyncRateLimitInterceptor(RateLimitInterceptor, grpc.ServerInterceptor):
    """The interceptor for `grpc.server`."""

    def __init__(self, *, limiter: Limiter, **options: Any) -> None:
        if not isinstance(limiter, Limiter):
            raise InvalidRule(
                f"limiter: must be a Limiter for grpc.server, or an AsyncLimiter for grpc.aio.server, got {limiter!r}"
            )
        super().__init__(limiter=limiter, **options)

    def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler, method = continuation(handler_call_details), handler_call_details.method
        # No handler: the method does not exist. Wrap the handler, as the client is known only when it runs.
        return handler if handler is None or self._options.skips(method) else self._calls.limit_handler(handler, method)


class AsyncRateLimitInterceptor(RateLimitInterceptor, grpc.aio.ServerInterceptor):
    """The interceptor for `grpc.aio.server`."""

    def __init__(self, *, limiter: AsyncLimiter, **options: Any) -> None:
        if not isinstance(limiter, AsyncLimiter):
            raise InvalidRule(f"limiter: must be an AsyncLimiter for grpc.aio.server, got {limiter!r}")
        super().__init__(limiter=limiter, **options)

    def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # grpc.server accepts any interceptor: this is the first chance to raise
            raise InvalidRule("limiter: must be a Limiter for grpc.server, this is an AsyncLimiter") from None
        return self._intercept(continuation, handler_call_details)

    async def _intercept(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler, method = await continuation(handler_call_details), handler_call_details.method
        return handler if handler is None or self._options.skips(method) else self._calls.limit_handler(handler, method)
