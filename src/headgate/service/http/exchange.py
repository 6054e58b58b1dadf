"""One HTTP request and its answer over ASGI: reads and checks bodies and tokens, and sends answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from headgate.http.asgi import Receive, Scope, Send
from headgate.service.http.problems import MEDIA_TYPE, HttpError, problem_of

RawHeaders = list[tuple[bytes, bytes]]
Headers = Mapping[bytes, bytes]  # of a request; of repeated headers, the last

BODY_SECONDS: Final = 30.0  # for a body to arrive, after its first part

ADMITTED: Final = "headgate.admitted"  # in the state of a request

_JSON: Final = (b"content-type", b"application/json")
_NO_STORE: Final = (b"cache-control", b"no-store")


class Answer(NamedTuple):
    """A response as plain data."""

    status: int
    headers: RawHeaders
    body: bytes = b""


Handler = Callable[[Scope, Receive], Awaitable[Answer]]


class ClientGone(Exception):
    """The client left before it had sent its whole request, so no answer is sent."""


async def body_of(headers: Headers, receive: Receive, limit: int) -> bytes:
    """Return the whole body of a request, of at most `limit` bytes. Raises `HttpError`, `ClientGone`."""
    length = headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length) > limit:  # servers reject malformed lengths
        raise _too_large(limit)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        return body
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read_parts(message, receive, limit)
    except TimeoutError:
        raise HttpError(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from None


async def _read_parts(message: Any, receive: Receive, limit: int) -> bytes:
    parts, size = [], 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"the body must be at most {limit:,} bytes long")


def require_json(headers: Headers) -> None:
    """Raise `HttpError` unless the content type is JSON or absent.

    A web page can make a browser send a request without a content type to any address, without a preflight. So requests
    from web pages must have the JSON content type.
    """
    kind = headers.get(b"content-type")
    if kind == b"application/json" or (kind is None and b"origin" not in headers):
        return
    said = (kind or b"").partition(b";")[0].strip().lower()
    if said != b"application/json" and not (said.startswith(b"application/") and said.endswith(b"+json")):
        got = "none" if kind is None else repr(kind.decode("latin-1")[:80])
        raise HttpError(415, f"Content-Type: must be application/json, got {got}", {"Accept": "application/json"})


def require_plain(headers: Headers) -> None:
    """Raise `HttpError` if the body is compressed. Call it only for bodies that are not valid JSON."""
    coding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if coding.lower() != "identity":
        detail = f"Content-Encoding: must not be there: bodies are not decompressed, got {coding[:80]!r}"
        raise HttpError(415, detail, {"Accept-Encoding": "identity"})


def admit(scope: Scope) -> None:
    """Mark a request as authorized, so that its cost is not charged to the client's allowance."""
    scope.setdefault("state", {})[ADMITTED] = True


def address_of(scope: Scope) -> str | None:
    """Return the client's address; None if unknown."""
    client = scope.get("client")
    return None if client is None else str(client[0])


def bearer_of(headers: Headers, name: bytes = b"authorization") -> str | None:
    """Return the bearer token of a request; None if there is none."""
    value = headers.get(name)
    if value is None:
        return None
    scheme, _, token = value.decode("latin-1").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def json_answer(status: int, body: bytes, *fields: tuple[bytes, bytes]) -> Answer:
    """Return an answer in JSON."""
    return Answer(status, [_JSON, (b"content-length", b"%d" % len(body)), *fields], body)


def error_answer(error: BaseException) -> Answer:
    """Return the answer to an exception."""
    status, headers, _ = problem = problem_of(error)
    body = problem.encode()
    fields = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    content = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body)), _NO_STORE]
    return Answer(status, [*content, *fields], body)


async def send_answer(scope: Scope, send: Send, answer: Answer) -> None:
    """Send an answer; without its body for HEAD."""
    status, headers, body = answer
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
