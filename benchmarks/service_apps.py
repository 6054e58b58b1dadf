"""A gRPC server whose method does nothing: `python -m benchmarks.service_apps PORT`. What grpcio alone takes."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Mapping
from typing import Any, Final, Literal

import uvloop

from headgate.service.access import Access
from headgate.service.grpc.server import GrpcServer
from headgate.service.protos import rate_limiter_pb2 as messages
from headgate.service.rpc.method import Method


class Empty:
    """A service that answers with a message that is always the same."""

    name: Final = "benchmarks.Empty"
    protocol: Final[Literal["grpc"]] = "grpc"

    def __init__(self) -> None:
        answer = messages.CheckResponse(allowed=True, limit=100, remaining=99, rule="searches", reason="within_limit")
        self._answer = answer
        self.methods: Mapping[str, Method] = {"Check": Method(messages.CheckRequest, self.check)}

    async def check(self, _: messages.CheckRequest) -> messages.CheckResponse:
        return self._answer


async def serve(port: int) -> None:
    server: Any = GrpcServer([Empty()], access=Access())
    await server.start(f"127.0.0.1:{port}")
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
