"""Limits in responses to clients, and for handlers."""

from __future__ import annotations

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


def status_of(limits: Limits[Any]) -> tuple[grpc.StatusCode, str]:
    """The code and details of a refusal. A 503 in HTTP becomes UNAVAILABLE: the request was not decided."""
    decision = limits.decision
    code = grpc.StatusCode.UNAVAILABLE if decision.status == 503 else grpc.StatusCode.RESOURCE_EXHAUSTED
    detail: str = problem(decision)["detail"]
    return code, detail
