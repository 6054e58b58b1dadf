"""A gRPC server with limits: `python -m examples.grpc_server [PORT]`. With `call [PORT]`, a client of it.

It needs no generated code: messages are plain bytes. With yours, `add_GreeterServicer_to_server` takes the place of the
generic handler, and nothing else changes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from headgate import AsyncLimiter, Rule
from headgate.http.grpc import RateLimitInterceptor, current_limits

PORT = 50051
STORE = os.environ.get("HEADGATE_STORE", "memory://")  # redis://localhost:6379/0 for several servers
RULES = [
    Rule(id="all", quota="100/minute", dimension="ip"),
    Rule(
        id="stories",
        quota="2/hour gcra",
        dimension="ip",
        endpoints=["/example.Greeter/TellStory"],
        message="Two stories an hour. The next one is worth waiting for.",
    ),
]


async def greet(name: bytes, _: Any) -> bytes:
    limits = current_limits()
    left = "" if limits is None else f" You may call {limits.decision.remaining} more times."
    return b"Hello, " + name + b"!" + left.encode()


async def tell_story(name: bytes, _: Any) -> AsyncIterator[bytes]:
    for line in (b"Once upon a time there was ", name, b", who waited for their turn."):
        yield line


async def serve(port: int) -> None:
    async with AsyncLimiter(RULES, store=STORE) as limiter:
        server = grpc.aio.server(interceptors=[RateLimitInterceptor(limiter=limiter)])
        methods: dict[str, Any] = {
            "Greet": grpc.unary_unary_rpc_method_handler(greet),
            "TellStory": grpc.unary_stream_rpc_method_handler(tell_story),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("example.Greeter", methods),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        print(f"Listening on 127.0.0.1:{port}. Try: python -m examples.grpc_server call {port}", flush=True)
        await server.wait_for_termination()


def call(port: int) -> None:
    """Ask for a greeting and for three stories: the third is refused."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        greeting: Any = channel.unary_unary("/example.Greeter/Greet")
        story: Any = channel.unary_stream("/example.Greeter/TellStory")
        print(greeting(b"Alice").decode())
        for _ in range(3):
            try:
                print(b"".join(story(b"Alice")).decode())
            except grpc.RpcError as error:
                refusal: Any = error
                print(f"{refusal.code().name}: {refusal.details()}")
                for key, value in refusal.trailing_metadata():
                    print(f"  {key}: {value}")


def main(*arguments: str) -> None:
    calling = arguments[:1] == ("call",)
    rest = arguments[calling:]
    port = int(rest[0]) if rest else PORT
    if calling:
        call(port)
        return
    try:
        asyncio.run(serve(port))
    except KeyboardInterrupt:
        print("Bye.")


if __name__ == "__main__":
    main(*sys.argv[1:])
