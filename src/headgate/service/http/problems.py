"""Exceptions as HTTP answers: a status, header fields, and problem details (RFC 9457).

An answer holds what the caller can act on. The log holds what went wrong inside.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from math import ceil
from secrets import token_hex
from typing import Any, Final, NamedTuple

from headgate.errors import (
    AccessError,
    ChangeConflict,
    DatabaseError,
    Forbidden,
    HeadgateError,
    IdempotencyConflict,
    InvalidCheck,
    InvalidQuota,
    InvalidRule,
    NotFound,
    RateLimited,
    StoreError,
    Unauthenticated,
)
from headgate.http.problem import MEDIA_TYPE, problem
from headgate.service.access import TokensUnavailable

log = logging.getLogger("headgate")

MAX_DETAIL: Final = 1_000  # characters
RETRY_SECONDS: Final = 1  # until a retry, after a failure of the store or the database


class HttpError(Exception):
    """An error of HTTP itself: a request's method, length, type or syntax. Not for invalid rules."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = members  # further members of the problem details


class HttpProblem(NamedTuple):
    """The answer to a request that failed."""

    status: int
    headers: dict[str, str]  # without those that describe the body
    body: dict[str, Any]

    def encode(self) -> bytes:
        """Return the body as JSON."""
        return json.dumps(self.body).encode()


def problem_of(error: BaseException) -> HttpProblem:
    """Return the answer to an exception. Logs the details that the caller does not get.

    An unexpected exception is a 500 with an `id`, under which the log has the traceback.
    """
    if isinstance(error, HttpError):
        return HttpProblem(error.status, error.headers, {**details(error.status, error.detail), **error.members})
    if isinstance(error, RateLimited):
        return _refused(error)
    if isinstance(error, StoreError | DatabaseError):
        return _unavailable(error)
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
            return HttpProblem(status, headers, {**details(status, _text(error)), **_members(error)})
    return _unexpected(error)


def details(status: int, detail: str) -> dict[str, Any]:
    """Return problem details without a type of their own: the status is the kind of problem."""
    known = status in HTTPStatus._value2member_map_
    title = HTTPStatus(status).phrase if known else "Error"
    return {"type": "about:blank", "title": title, "status": status, "detail": detail}


_STATUSES: Final[dict[type[HeadgateError], int]] = {  # subclasses first
    IdempotencyConflict: 422,  # as in draft-ietf-httpapi-idempotency-key-header
    InvalidCheck: 400,
    InvalidRule: 422,
    InvalidQuota: 422,
    NotFound: 404,
    ChangeConflict: 409,
    Unauthenticated: 401,
    Forbidden: 403,
    AccessError: 403,
}


def _text(error: BaseException) -> str:
    if isinstance(error, InvalidRule):
        count = len(error.problems)
        return f"{error.problems[0]}" if count == 1 else f"There are {count:,} problems: see `problems`."
    text = str(error)  # it may contain what the caller sent
    return text if len(text) <= MAX_DETAIL else f"{text[:MAX_DETAIL]}…"


def _members(error: BaseException) -> dict[str, Any]:
    if isinstance(error, InvalidRule):
        problems = [{"where": one.where, "field": one.field, "message": one.message} for one in error.problems]
        return {"problems": problems}
    return {}


def _refused(error: RateLimited) -> HttpProblem:
    """Return the answer to a request that hit a limit of the service itself, such as the admin API's."""
    decision = error.decision
    after = decision.retry_after
    headers = {} if after is None else {"Retry-After": str(ceil(after))}
    return HttpProblem(decision.status, headers, problem(decision))


def _unavailable(error: StoreError | DatabaseError) -> HttpProblem:
    """Return a 503 that says only what could not be reached: a driver's message may contain addresses and names."""
    what = "store" if isinstance(error, StoreError) else "database"
    if not isinstance(error, TokensUnavailable):
        log.error("a request failed because of the %s: %s", what, error)
    detail = f"The {what} could not do this now. Please try again."
    return HttpProblem(503, {"Retry-After": str(RETRY_SECONDS)}, details(503, detail))


def _unexpected(error: BaseException) -> HttpProblem:
    name = token_hex(8)
    log.error("a request failed unexpectedly (id %s)", name, exc_info=error)
    detail = f"Something went wrong here. The service's log has more, under the id {name}."
    return HttpProblem(500, {}, {**details(500, detail), "id": name})


__all__ = ["MEDIA_TYPE", "RETRY_SECONDS", "HttpError", "HttpProblem", "details", "problem_of"]
