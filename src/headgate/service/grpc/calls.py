"""Methods as grpcio's handlers: who is calling, the message, the answer, and what went wrong.

Messages are read and written here, not by grpcio, which answers UNKNOWN when that fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from time import perf_counter
from typing import Any, Final

import grpc
import grpc.aio

from headgate.service.access import Access, Role
from headgate.service.grpc.gate import Gate
from headgate.service.grpc.status import status_of
from headgate.service.rpc.method import Method, Service
from headgate.telemetry.meter import Meter

Context = grpc.aio.ServicerContext[bytes, bytes]

_BEARER: Final = "bearer "


def handler_of(service: Service, access: Access, meter: Meter, gate: Gate) -> grpc.GenericRpcHandler:
    """All methods of a service. Their answers pass the gate."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: grpc.unary_unary_rpc_method_handler(_unary(name, method, service.protocol, access, meter, gate))
        for name, method in service.methods.items()
    }
    return grpc.method_handlers_generic_handler(service.name, handlers)


def _unary(
    name: str, method: Method, protocol: str, access: Access, meter: Meter, gate: Gate
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    read, answer, role, size = method.request.FromString, method.answer, method.role, method.size

    async def call(received: bytes, context: Context) -> bytes:
        start = perf_counter()
        try:
            if not access.open:
                await access.require_data(token_of(context), role)
            request = read(received)
            answered = await answer(request)
            sent = answered if isinstance(answered, bytes) else answered.SerializeToString()
        except Exception as error:  # noqa: BLE001 - told to the caller, and logged
            meter.took(protocol, perf_counter() - start)
            await context.abort(*status_of(error, name))
        meter.took(protocol, perf_counter() - start, 1 if size is None else size(request))
        if gate.closed is not None:
            await gate.pass_through()
        return sent

    return call


def guarded(
    name: str, stream: Callable[[Any, Any], AsyncIterator[Any]], request: Any, access: Access, role: Role = "viewer"
) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of streams both ways, for callers of the data plane alone."""

    async def received(messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for message in messages:
            yield request.FromString(message)

    async def call(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        try:
            await access.require_data(token_of(context), role)
            async for answer in stream(received(messages), context):
                yield answer.SerializeToString()
        except Exception as error:  # noqa: BLE001 - told to the caller, and logged
            await context.abort(*status_of(error, name))

    return grpc.stream_stream_rpc_method_handler(call)


def token_of(context: Any) -> str | None:
    """The bearer token of a call."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value[:7].lower() == _BEARER:
            return value[7:].strip()
    return None
