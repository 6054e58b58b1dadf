"""gRPC status codes, and the status for each exception."""

from __future__ import annotations

import logging
from enum import IntEnum
from secrets import token_hex
from typing import Final

from google.protobuf.message import DecodeError

from headgate.errors import (
    DatabaseError,
    Forbidden,
    HeadgateError,
    InvalidCheck,
    RateLimited,
    StoreError,
    Unauthenticated,
)

log = logging.getLogger("headgate")


class Code(IntEnum):
    """The status codes that we send."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Ended(Exception):
    """Ends a call with this code and these details."""

    def __init__(self, code: Code, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


_CODES: Final[tuple[tuple[type[Exception], Code], ...]] = (
    (InvalidCheck, Code.INVALID_ARGUMENT),
    (Unauthenticated, Code.UNAUTHENTICATED),
    (Forbidden, Code.PERMISSION_DENIED),
    (RateLimited, Code.RESOURCE_EXHAUSTED),  # after too many bad tokens
    (StoreError, Code.UNAVAILABLE),
)


def status_of(error: Exception, method: str) -> Ended:
    """Return the status to end a call with.

    An unexpected error is logged, and the caller gets only its fault id. The status is INTERNAL, because Envoy allows
    the request on UNKNOWN.
    """
    if isinstance(error, Ended):
        return error
    if isinstance(error, DecodeError):
        return Ended(Code.INVALID_ARGUMENT, f"the message cannot be read: it is no {method} request, or not UTF-8")
    if isinstance(error, DatabaseError):
        return Ended(Code.UNAVAILABLE, "the token could not be looked up: try again later")
    if isinstance(error, HeadgateError):
        for kind, code in _CODES:
            if isinstance(error, kind):
                return Ended(code, str(error))
    fault = token_hex(8)
    log.error("gRPC: %s failed, fault %s", method, fault, exc_info=error)
    return Ended(Code.INTERNAL, f"something went wrong here; the log has more, under fault {fault}")
