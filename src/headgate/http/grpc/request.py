"""A call as identity and cost functions see it."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote


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
