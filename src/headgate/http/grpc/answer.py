"""Limits as trailing metadata and status of a call, and the current call's limits for handlers."""

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

# Read by grpc's retry policy: milliseconds until the next attempt; a negative number means never.
_PUSHBACK: Final = "grpc-retry-pushback-ms"


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


def status_of(limits: Limits[Any]) -> tuple[grpc.StatusCode, str]:
    """Return the code and details of a refusal. HTTP's 503 becomes UNAVAILABLE: the store failed."""
    decision = limits.decision
    code = grpc.StatusCode.UNAVAILABLE if decision.status == 503 else grpc.StatusCode.RESOURCE_EXHAUSTED
    detail: str = problem(decision)["detail"]
    return code, detail
