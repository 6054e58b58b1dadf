"""A gRPC server whose method does nothing: `python -m benchmarks.service_apps PORT`. What grpcio alone takes."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import grpc
import grpc.aio
import uvloop

from headgate.service.protos import rate_limiter_pb2 as messages

ANSWER = messages.CheckResponse(allowed=True, limit=100, remaining=99, rule="searches", reason="within_limit")


async def check(_: messages.CheckRequest, __: Any) -> messages.CheckResponse:
    return ANSWER


async def serve(port: int) -> None:
    server = grpc.aio.server()
    method: Any = grpc.unary_unary_rpc_method_handler(
        check, messages.CheckRequest.FromString, messages.CheckResponse.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmarks.Empty", {"Check": method}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
