"""Reads a gRPC call's method, timeout and encodings from its request's header fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headgate.service.grpc.framing import ENCODINGS, HEAD, IDENTITY, trailers
from headgate.service.grpc.status import Code
from headgate.service.http2 import headers
from headgate.service.http2.headers import Fields
from headgate.service.http2.hub import Malformed
from headgate.service.rpc.method import Flow, Method

MAX_FIELDS: Final = 16_384  # bytes of all fields, as HTTP/2 counts them
CARRIED: Final = (b"traceparent", b"tracestate")  # the trace context

_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_FORBIDDEN: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")  # of HTTP/1.1
)
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE: Final = re.compile(rb"[^\0\r\n]*")
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS: Final = {b"H": 3_600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_BEARER: Final = "bearer "
_TEXT: Final = headers.field(b"content-type", b"text/plain")
_ADVICE: Final = b"This port answers gRPC calls alone: POST, with content-type application/grpc.\n"


class MethodRoute(NamedTuple):
    """A method, its name, and the protocol under which the meter counts its calls."""

    name: str
    method: Method | Flow
    protocol: str | None  # None: the meter does not count its calls


class CallHeaders(NamedTuple):
    """The headers of a call. With a `refusal`, the response's header block, it is not a valid call; `body` follows
    that."""

    route: MethodRoute | None = None
    refusal: bytes = b""
    body: bytes = b""
    status: str = ""  # of the refusal, for the meter
    length: int | None = None  # of the request's body, if declared
    encoding: bytes = IDENTITY
    timeout: float | None = None  # seconds
    token: str | None = None
    carried: Mapping[str, str] = {}


class CallHeadersReader:
    """Reads header fields into `CallHeaders`. `routes` are by path."""

    def __init__(self, routes: Mapping[bytes, MethodRoute]) -> None:
        self._routes = routes

    def __call__(self, fields: Fields) -> CallHeaders:
        """Read the header fields of a request. Raises `Malformed`."""
        pseudo, others = _split_fields(fields)
        head = self._head(fields, pseudo, others)
        length = others.get(b"content-length")
        return head if length is None else head._replace(length=_length(length))

    def _head(self, fields: Fields, pseudo: Mapping[bytes, bytes], others: Mapping[bytes, bytes]) -> CallHeaders:
        if pseudo.get(b":method") != b"POST":
            refusal = headers.status(405) + headers.field(b"allow", b"POST") + _TEXT
            return CallHeaders(refusal=refusal, body=_ADVICE, status="405")
        kind = others.get(b"content-type", b"")
        if kind != b"application/grpc" and not kind.startswith((b"application/grpc+", b"application/grpc;")):
            return CallHeaders(refusal=headers.status(415) + _TEXT, body=_ADVICE, status="415")
        if sum(len(name) + len(value) + 32 for name, value in fields) > MAX_FIELDS:
            return _refusal(Code.RESOURCE_EXHAUSTED, f"the metadata is larger than max: {MAX_FIELDS:,} bytes")
        path = pseudo[b":path"]
        route = self._routes.get(path)
        if route is None:
            return _refusal(Code.UNIMPLEMENTED, f"there is no method {path.decode('utf-8', 'replace')!r} here")
        encoding = others.get(b"grpc-encoding", IDENTITY)
        if encoding not in ENCODINGS:
            return _refusal(Code.UNIMPLEMENTED, f"grpc-encoding {encoding.decode('utf-8', 'replace')!r} is not known")
        timeout = None
        if b"grpc-timeout" in others:
            found = _TIMEOUT.fullmatch(others[b"grpc-timeout"])
            if found is None:
                return _refusal(Code.INTERNAL, "grpc-timeout cannot be read")
            timeout = int(found[1]) * _UNITS[found[2]]
        carried = {name.decode(): others[name].decode("latin-1") for name in CARRIED if name in others}
        return CallHeaders(route=route, encoding=encoding, timeout=timeout, token=_token(others), carried=carried)


def _split_fields(fields: Fields) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Return the pseudo-header fields, and the others. Of repeated fields, the first counts. Raises `Malformed`."""
    pseudo: dict[bytes, bytes] = {}
    others: dict[bytes, bytes] = {}
    for name, value in fields:
        if name[:1] == b":":
            if name not in _PSEUDO or name in pseudo or others:
                raise Malformed
            pseudo[name] = value
        elif not _NAME.fullmatch(name) or name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
            raise Malformed
        else:
            first = others.setdefault(name, value)
            if name == b"content-length" and first != value:
                raise Malformed
        if not _VALUE.fullmatch(value):
            raise Malformed
    if not pseudo.get(b":path") or b":method" not in pseudo or b":scheme" not in pseudo:
        raise Malformed
    return pseudo, others


def _length(value: bytes) -> int:
    """Return the declared length of a body. Raises `Malformed`."""
    if not value.isdigit() or len(value) > 18:
        raise Malformed
    return int(value)


def _refusal(code: Code, details: str) -> CallHeaders:
    return CallHeaders(refusal=HEAD + trailers(code, details), status=code.name)


def _token(others: Mapping[bytes, Any]) -> str | None:
    """Return the bearer token of a call."""
    value: str = others.get(b"authorization", b"").decode("utf-8", "replace")
    return value[7:].strip() if value[:7].lower() == _BEARER else None
