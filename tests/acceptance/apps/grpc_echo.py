"""Servers of grpcio with a handler of every kind: in the test's own process, or run as `python -m` with a JSON object.

`threads` is grpc.server, `asyncio` grpc.aio.server, and `asyncio-threads` the latter with handlers that are not async.
"""

# ruff: noqa: ARG002 - handlers have one signature

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio

from headgate import AsyncLimiter, Limiter, Quota, Rule
from headgate.http.grpc import RateLimitInterceptor, current_limits

KINDS = ("threads", "asyncio", "asyncio-threads")
SERVICE = "test.Echo"
THREADS = 16


def told() -> bytes:
    """What a handler learns of the limits."""
    limits = current_limits()
    if limits is None:
        return b"null"
    charged = [[one.decision.remaining, one.cost] for one in limits.charged]
    return json.dumps({"facts": dict(limits.facts), "charged": charged}).encode()


class Echo:
    """The handlers, as functions for threads."""

    def unary(self, request: bytes, context: Any) -> bytes:
        return request

    def fan(self, request: bytes, context: Any) -> Iterator[bytes]:
        for number in range(3):
            yield request + str(number).encode()

    def endless(self, request: bytes, context: Any) -> Iterator[bytes]:
        yield request
        while context.is_active():
            time.sleep(0.01)

    def join(self, requests: Iterator[bytes], context: Any) -> bytes:
        return b"".join(requests)

    def chat(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:
            yield request.upper()

    def limits(self, request: bytes, context: Any) -> bytes:
        return told()

    def limits_stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        yield told()
        yield told()

    def metadata(self, request: bytes, context: Any) -> bytes:
        context.send_initial_metadata((("own-initial", "1"),))
        context.set_trailing_metadata((("own-trailing", "2"), ("own-bin", b"\xff")))
        return request

    def abort(self, request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("own-trailing", "3"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
        return request

    def abort_in_stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        yield request
        context.set_trailing_metadata((("own-trailing", "4"),))
        context.abort(grpc.StatusCode.DATA_LOSS, "lost")

    def fail(self, request: bytes, context: Any) -> bytes:
        raise LookupError("no such thing")

    def fail_in_stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        yield request
        raise LookupError("no such thing")

    def code(self, request: bytes, context: Any) -> bytes:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details("nowhere")
        return request


class AsyncEcho:
    """The same, as coroutine functions and async generators."""

    async def unary(self, request: bytes, context: Any) -> bytes:
        return request

    async def fan(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(3):
            yield request + str(number).encode()

    async def endless(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield request
        await asyncio.Event().wait()

    async def join(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b"".join([request async for request in requests])

    async def chat(self, requests: AsyncIterator[bytes], context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request.upper())

    async def limits(self, request: bytes, context: Any) -> bytes:
        return told()

    async def limits_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield told()
        yield told()

    async def metadata(self, request: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("own-initial", "1"),))
        context.set_trailing_metadata((("own-trailing", "2"), ("own-bin", b"\xff")))
        assert context.trailing_metadata() == (("own-trailing", "2"), ("own-bin", b"\xff"))
        return request

    async def abort(self, request: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now", (("own-trailing", "3"),))

    async def abort_in_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield request
        context.set_trailing_metadata((("own-trailing", "4"),))
        await context.abort(grpc.StatusCode.DATA_LOSS, "lost")

    async def fail(self, request: bytes, context: Any) -> bytes:
        raise LookupError("no such thing")

    async def fail_in_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield request
        raise LookupError("no such thing")

    async def code(self, request: bytes, context: Any) -> bytes:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details("nowhere")
        return request


def handlers(echo: Echo | AsyncEcho) -> tuple[grpc.GenericRpcHandler, ...]:
    """Those of the service, and one at the place of the health service."""
    kinds: Mapping[Callable[..., grpc.RpcMethodHandler[Any, Any]], str] = {
        grpc.unary_unary_rpc_method_handler: "unary limits metadata abort fail code",
        grpc.unary_stream_rpc_method_handler: "fan endless limits_stream abort_in_stream fail_in_stream",
        grpc.stream_unary_rpc_method_handler: "join",
        grpc.stream_stream_rpc_method_handler: "chat",
    }
    methods = {name: make(getattr(echo, name)) for make, names in kinds.items() for name in names.split()}
    health: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Check": grpc.unary_unary_rpc_method_handler(echo.limits)}
    return (
        grpc.method_handlers_generic_handler(SERVICE, methods),
        grpc.method_handlers_generic_handler("grpc.health.v1.Health", health),
    )


Rules = str | Quota | list[Rule]


@contextmanager
def serving(
    kind: str,
    rules: Rules,
    *,
    port: int = 0,
    limiter: Mapping[str, Any] | None = None,
    outer: Rules | None = None,
    **options: Any,
) -> Iterator[str]:
    """A server of this kind in this process, and its address. The options are those of the interceptor.

    `outer` are the rules of another interceptor around it.
    """
    if kind == "threads":
        with Limiter(rules, **(limiter or {})) as limits, ThreadPoolExecutor(THREADS) as threads:
            interceptors: list[Any] = [] if outer is None else [RateLimitInterceptor(limiter=Limiter(outer))]
            interceptors.append(RateLimitInterceptor(limiter=limits, **options))
            server = grpc.server(threads, interceptors=interceptors)
            server.add_generic_rpc_handlers(handlers(Echo()))
            port = server.add_insecure_port(f"127.0.0.1:{port}")
            server.start()
            try:
                yield f"127.0.0.1:{port}"
            finally:
                server.stop(None).wait()
        return

    started: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        async with AsyncLimiter(rules, **(limiter or {})) as limits:
            interceptors = [] if outer is None else [RateLimitInterceptor(limiter=AsyncLimiter(outer))]
            interceptors.append(RateLimitInterceptor(limiter=limits, **options))
            threads = ThreadPoolExecutor(THREADS)
            server = grpc.aio.server(threads, interceptors=interceptors)
            server.add_generic_rpc_handlers(handlers(AsyncEcho() if kind == "asyncio" else Echo()))
            bound = server.add_insecure_port(f"127.0.0.1:{port}")
            await server.start()
            stop = asyncio.Event()
            started.set_result((bound, asyncio.get_running_loop(), stop))
            await stop.wait()
            await server.stop(None)
            await asyncio.to_thread(threads.shutdown)  # they may still need the loop

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    bound, loop, stop = started.result()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def main() -> None:
    job = json.loads(sys.argv[1])
    quota = Quota(job["limit"], job["window"])
    with serving(job["kind"], [Rule(id="r", quota=quota, dimension="ip")], port=job["port"], limiter=job["limiter"]):
        threading.Event().wait()


if __name__ == "__main__":
    main()
