"""Limits in responses to clients, and for handlers."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from math import ceil
from typing import Any, Final

import grpc

from headgate.http.limits import Limits
from headgate.http.problem import problem

Metadata = tuple[tuple[str, str], ...]

CURRENT: Final[ContextVar[Limits[Any] | None]] = ContextVar("headgate.http.grpc.limits", default=None)

# What grpc's own retries go by: milliseconds until the next attempt; a negative number: never.
_PUSHBACK: Final = "grpc-retry-pushback-ms"


def current_limits() -> Limits[Any] | None:
    """What was decided on the call that is being handled; None when nothing was, as of a method that is skipped."""
    return CURRENT.get()


def metadata_of(limits: Limits[Any]) -> Metadata:
    """The trailing metadata of a call: the fields of HTTP, and of a refusal, when to retry."""
    if not limits.charged:
        return ()
    fields = [(name.lower(), value) for name, value in limits.fields]
    decision = limits.decision
    if not decision.allowed:
        seconds = decision.retry_after
        fields.append((_PUSHBACK, "-1" if seconds is None else str(ceil(seconds * 1_000))))
    return tuple(fields)


class GrpcResponse:
    """The end of a call, as `deduct_when` sees it: its status `code`, and the status's `details`."""

    __slots__ = ("code", "details")

    def __init__(self, code: grpc.StatusCode | None, details: str | bytes | None, error: BaseException | None) -> None:
        """`code` is the one that the handler has set, and `error` the exception that it has raised, if any."""
        if code is None:
            code = grpc.StatusCode.OK if error is None else _code_of(error)
        self.code = code
        self.details = details.decode("utf-8", "replace") if isinstance(details, bytes) else details or ""


def _code_of(error: BaseException) -> grpc.StatusCode:
    left = isinstance(error, asyncio.CancelledError | GeneratorExit)  # the client has gone
    return grpc.StatusCode.CANCELLED if left else grpc.StatusCode.UNKNOWN


def status_of(limits: Limits[Any]) -> tuple[grpc.StatusCode, str]:
    """The code and details of a refusal. A 503 in HTTP becomes UNAVAILABLE: the request was not decided."""
    decision = limits.decision
    code = grpc.StatusCode.UNAVAILABLE if decision.status == 503 else grpc.StatusCode.RESOURCE_EXHAUSTED
    detail: str = problem(decision)["detail"]
    return code, detail
