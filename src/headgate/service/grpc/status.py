"""What an exception means to a caller of gRPC."""

from __future__ import annotations

import logging
from secrets import token_hex

import grpc
from google.protobuf.message import DecodeError

from headgate.errors import DatabaseError, Forbidden, HeadgateError, InvalidCheck, StoreError, Unauthenticated

log = logging.getLogger("headgate")

_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (InvalidCheck, grpc.StatusCode.INVALID_ARGUMENT),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (Forbidden, grpc.StatusCode.PERMISSION_DENIED),
    (StoreError, grpc.StatusCode.UNAVAILABLE),
)


def status_of(error: Exception, method: str) -> tuple[grpc.StatusCode, str]:
    """The code and the details to answer with. What nobody has thought of is logged, and told by an id alone: Envoy
    would read UNKNOWN as leave to go on."""
    if isinstance(error, DecodeError):
        return grpc.StatusCode.INVALID_ARGUMENT, f"the message cannot be read: it is no {method} request, or not UTF-8"
    if isinstance(error, DatabaseError):
        return grpc.StatusCode.UNAVAILABLE, "the token could not be looked up: try again later"
    if isinstance(error, HeadgateError):
        for kind, code in _CODES:
            if isinstance(error, kind):
                return code, str(error)
    fault = token_hex(8)
    log.error("gRPC: %s failed, fault %s", method, fault, exc_info=error)
    return grpc.StatusCode.INTERNAL, f"something went wrong here; the log has more, under fault {fault}"
