"""A call, as functions of the app and the interceptors see it: its request, response, handler and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from math import ceil
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import grpc

from headgate.core.clock import Clock
from headgate.http.limits import Limits
from headgate.http.problem import problem

Metadata = tuple[tuple[str, str], ...]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic only for type checkers
Behaviour = Callable[..., Any]

CURRENT: Final[ContextVar[Limits[Any] | None]] = ContextVar("headgate.http.grpc.limits", default=None)

# Read by grpc's retry policy: milliseconds until the next attempt; a negative number means never.
_PUSHBACK: Final = "grpc-retry-pushback-ms"

# By whether requests and responses are streams: the attribute with the handler's function, and the handler's factory.
_KINDS: Final[dict[tuple[bool, bool], tuple[str, Callable[..., Handler]]]] = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


class GrpcRequest:
    """A call's metadata as headers, its full method as path, and its whole `context`.

    `message` is the request message; None if the method takes a stream.
    """

    __slots__ = ("context", "message", "path")

    def __init__(self, path: str, context: Any, message: Any = None) -> None:
        self.path = path  # /package.Service/Method
        self.context = context
        self.message = message

    @property
    def method(self) -> str:
        """`POST`, the HTTP method of every gRPC call."""
        return "POST"

    @property
    def peer(self) -> str | None:
        return address_of(self.context.peer())

    def header(self, name: str) -> str | None:
        lines = [_latin(value) for key, value in self.context.invocation_metadata() or () if key == name]
        return ", ".join(lines) if lines else None


def address_of(peer: str) -> str | None:
    """Return the address of a grpc peer such as `ipv4:192.0.2.7:5000` or `ipv6:%5B2001:db8::7%5D:5000`.

    Returns None for a peer without one, such as a Unix socket (`unix:`).
    """
    scheme, _, rest = unquote(peer).partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return None
    return rest.rpartition(":")[0].removeprefix("[").removesuffix("]") or None


def _latin(value: str | bytes) -> str:
    """Return a metadata value decoded as Latin-1. grpc decodes text as UTF-8 where it can: undo that."""
    if isinstance(value, str):
        if value.isascii():
            return value
        value = value.encode()
    return value.decode("latin-1")


class GrpcResponse:
    """The end of a call, as `deduct_when` sees it: its status `code`, and the status's `details`."""

    __slots__ = ("code", "details")

    def __init__(self, code: grpc.StatusCode | None, details: str | bytes | None, error: BaseException | None) -> None:
        """Take the `code` that the handler set, if any, and the exception that it raised, if any."""
        if code is None:
            code = grpc.StatusCode.OK if error is None else _code_of(error)
        self.code = code
        self.details = details.decode("utf-8", "replace") if isinstance(details, bytes) else details or ""


def _code_of(error: BaseException) -> grpc.StatusCode:
    left = isinstance(error, asyncio.CancelledError | GeneratorExit)  # the client has left
    return grpc.StatusCode.CANCELLED if left else grpc.StatusCode.UNKNOWN


class CallWaiter:
    """Makes a delayed call wait, if its client's deadline is later. Subclasses sleep."""

    def __init__(self, context: Any, clock: Clock) -> None:
        self.context = context
        self.clock = clock

    def may_wait(self, seconds: float) -> bool:
        """Return whether the client's deadline is later than the wait."""
        remaining = self.context.time_remaining()
        return remaining is None or seconds < remaining


def current_limits() -> Limits[Any] | None:
    """Return the decisions on the current call; None if there are none, as for a skipped method."""
    return CURRENT.get()


def metadata_of(limits: Limits[Any]) -> Metadata:
    """Return a call's trailing metadata: the HTTP header fields, and for a refusal also when to retry."""
    if not limits.charged:
        return ()
    fields = [(name.lower(), value) for name, value in limits.fields]
    decision = limits.decision
    if not decision.allowed:
        seconds = decision.retry_after
        fields.append((_PUSHBACK, "-1" if seconds is None else str(ceil(seconds * 1_000))))
    return tuple(fields)


def status_of(limits: Limits[Any]) -> tuple[grpc.StatusCode, str]:
    """Return the code and details of a refusal. HTTP's 503 becomes UNAVAILABLE: the store failed."""
    decision = limits.decision
    code = grpc.StatusCode.UNAVAILABLE if decision.status == 503 else grpc.StatusCode.RESOURCE_EXHAUSTED
    detail: str = problem(decision)["detail"]
    return code, detail


def behaviour_of(handler: Handler) -> Behaviour:
    """Return the function that handles calls."""
    behaviour: Behaviour = getattr(
        handler, _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)][0]
    )
    return behaviour


def replace_behaviour(handler: Handler, behaviour: Behaviour) -> Handler:
    """Return a copy of the handler with another function."""
    make = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)][1]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)
