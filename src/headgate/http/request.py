"""The parts of a request that Headgate reads, in any server or framework."""

from __future__ import annotations

from typing import Protocol


class Request(Protocol):
    """A request, as identity and cost functions see it."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str:
        """The path as the server routes it: decoded, not normalized."""
        ...

    @property
    def peer(self) -> str | None:
        """The address of the socket's peer without its port; None if it has none, as for a Unix socket."""
        ...

    def header(self, name: str) -> str | None:
        """Return a header by its lower-case name, decoded as Latin-1; repeated headers are joined with `, `."""
        ...
