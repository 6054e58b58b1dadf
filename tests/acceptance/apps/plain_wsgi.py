"""A WSGI app without a framework."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from headgate import Limiter
from headgate.http.wsgi import RateLimitMiddleware
from tests.acceptance.apps.rules import CHUNK, MANY, MAX_WAITING, RULES, SKIP, STORE, Closing, chunks_until

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

VIEWS = ("ok", "few", "shared", "closed", "slow", "crowd", "health")


def bare(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    file = parse_qs(environ.get("QUERY_STRING", "")).get("file", [""])[0]
    text = [("Content-Type", "text/plain"), ("X-Process", str(os.getpid()))]
    if path == "/stream":
        start_response("200 OK", text)
        return chunks_until(file)
    if path == "/closing":
        start_response("200 OK", text)
        return Closing(file)
    if path == "/large":
        start_response("200 OK", text)
        return (CHUNK for _ in range(MANY))
    if path == "/boom":
        start_response("200 OK", text)
        try:
            raise RuntimeError("boom")  # noqa: TRY301
        except RuntimeError:
            start_response("500 Internal Server Error", text, sys.exc_info())
            return [b"boom"]
    if path[1:] in VIEWS:
        start_response("200 OK", text)
        return [f"view {path[1:]}".encode()]
    segments = path.split("/")
    if path in ("/exact", "/caf\xc3\xa9") or (len(segments) == 3 and segments[1] == "items" and segments[2]):
        start_response("200 OK", text)
        return [b"view guarded"]
    if path.startswith("/guarded/") and path != "/guarded/":
        start_response("200 OK", text)
        return [b"view guarded"]
    start_response("404 Not Found", text)
    return [b"nothing here"]


app = RateLimitMiddleware(bare, limiter=Limiter(RULES, store=STORE), skip=SKIP, max_waiting=MAX_WAITING)
