"""The servers that the section `service` puts under load: `python -m benchmarks.service_apps NAME PORT`.

HEADGATE_BENCH_STORE says where it counts, and HEADGATE_BENCH_LOOP=asyncio has it run without uvloop. All share the
rules below, whose limits nobody reaches.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

from benchmarks.web_apps import LIMIT, STORE
from headgate import AsyncLimiter, Rule
from headgate.service.access import Access
from headgate.service.data import DataPlane
from headgate.service.grpc.server import GrpcServer
from headgate.service.protos import rate_limiter_pb2 as messages
from headgate.service.rpc.method import Method
from headgate.service.rpc.rate_limiter import RateLimiter

RULES: Final = [
    Rule(id="searches", quota=f"{LIMIT}/month fixed_window", dimension="user", endpoints=["/api/*"]),
    Rule(id="logins", quota=f"{LIMIT}/month fixed_window", dimension="ip", endpoints=["/login"]),
]
MORE_RULES: Final = [*RULES, Rule(id="all", quota=f"{LIMIT}/month fixed_window", dimension="global")]
LOOP: Final = "HEADGATE_BENCH_LOOP"
ENDPOINT: Final = "/api/search"


class Empty:
    """A service whose method does nothing: it answers with a message that is always the same."""

    name: Final = "benchmarks.Empty"
    protocol: Final[Literal["grpc"]] = "grpc"

    def __init__(self) -> None:
        self._answer = messages.CheckResponse(allowed=True, limit=LIMIT, rule="searches", reason="within_limit")
        self.methods: Mapping[str, Method] = {"Check": Method(messages.CheckRequest, self.check)}

    async def check(self, _: messages.CheckRequest) -> messages.CheckResponse:
        return self._answer


async def grpc_server(port: int, rules: list[Rule] = RULES) -> None:
    limiter = AsyncLimiter(rules, store=os.environ.get(STORE, "memory://"))
    data = DataPlane(limiter)
    server = GrpcServer([RateLimiter(data), Empty()], access=Access())
    await server.start(f"127.0.0.1:{port}")
    await asyncio.Event().wait()


SERVERS: Final[dict[str, Callable[[int], Awaitable[None]]]] = {
    "grpc": grpc_server,
    "grpc-two-rules": lambda port: grpc_server(port, MORE_RULES),
}


def main(name: str, port: int) -> None:
    import uvloop

    running: Any = SERVERS[name](port)
    gc.collect()
    gc.freeze()
    if os.environ.get(LOOP) == "asyncio":
        asyncio.run(running)
    else:
        uvloop.run(running)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
