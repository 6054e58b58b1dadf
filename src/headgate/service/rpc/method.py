"""Method: one remote procedure, as a transport needs to know it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from google.protobuf.message import Message

from headgate.service.access import Role


class Method(NamedTuple):
    """`answer` returns a message, or one in the form that it has on the wire. It raises a `HeadgateError` for what is
    the caller's fault, or the store's."""

    request: type[Message]
    answer: Callable[[Any], Awaitable[Message | bytes]]
    role: Role = "viewer"  # that callers need where the data plane is not open
    size: Callable[[Any], int] | None = None  # how many checks a request asks for; None: one


class Service(Protocol):
    """A service of some methods."""

    @property
    def name(self) -> str:
        """Its full name."""
        ...

    @property
    def protocol(self) -> Literal["grpc", "envoy"]:
        """What the meter knows it by."""
        ...

    @property
    def methods(self) -> Mapping[str, Method]:
        """Its methods by name."""
        ...
