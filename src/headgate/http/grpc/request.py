"""A call, as identity and cost functions see it."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote


class GrpcRequest:
    """A call's metadata as headers, its full method as path, and its whole `context`.

    `message` is the request of a method that takes one; of a method that takes a stream, None.
    """

    __slots__ = ("context", "message", "path")

    def __init__(self, path: str, context: Any, message: Any = None) -> None:
        self.path = path  # /package.Service/Method
        self.context = context
        self.message = message

    @property
    def method(self) -> str:
        """What every call is in HTTP."""
        return "POST"

    @property
    def peer(self) -> str | None:
        return address_of(self.context.peer())

    def header(self, name: str) -> str | None:
        lines = [_latin(value) for key, value in self.context.invocation_metadata() or () if key == name]
        return ", ".join(lines) if lines else None


def address_of(peer: str) -> str | None:
    """The address in what grpc calls a peer: `ipv4:192.0.2.7:5000`, `ipv6:%5B2001:db8::7%5D:5000`.

    None when it has none, as that of a Unix socket (`unix:`).
    """
    scheme, _, rest = unquote(peer).partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return None
    return rest.rpartition(":")[0].removeprefix("[").removesuffix("]") or None


def _latin(value: str | bytes) -> str:
    """The bytes as Latin-1: grpc has read those of texts as UTF-8 where they are that."""
    if isinstance(value, str):
        if value.isascii():
            return value
        value = value.encode()
    return value.decode("latin-1")
