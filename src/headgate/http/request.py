"""What the rest of `headgate.http` may know of a request, whatever server or framework it came through."""

from __future__ import annotations

from typing import Protocol


class Request(Protocol):
    """What identity needs to know of a request."""

    @property
    def method(self) -> str:
        """`GET`, as the client wrote it."""
        ...

    @property
    def path(self) -> str:
        """As the server routed it, not normalised."""
        ...

    @property
    def peer(self) -> str | None:
        """The address of the socket's peer, without port. None: it has none, as on a unix socket."""
        ...

    def header(self, name: str) -> str | None:
        """A header by its lower-case name, decoded as Latin-1; several lines joined with `", "`."""
        ...
