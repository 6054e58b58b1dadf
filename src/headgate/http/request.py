"""What Headgate needs to know of a request, whichever server or framework it came through."""

from __future__ import annotations

from typing import Protocol


class Request(Protocol):
    """A request, as identity and cost functions see it."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str:
        """As the server routed it: decoded, and not normal."""
        ...

    @property
    def peer(self) -> str | None:
        """The address of the socket's other end, without its port; None when there is none, as of a Unix socket."""
        ...

    def header(self, name: str) -> str | None:
        """A header by its name in lower case, decoded as Latin-1; several lines of it are joined with `, `."""
        ...
