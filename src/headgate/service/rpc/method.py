"""Method and Flow: remote procedures, as a transport needs to know them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from google.protobuf.message import Message

from headgate.operations.caller import Role

Answered = tuple[bytes, int]  # the answer, and how many checks there were
Work = Callable[[], Awaitable[Answered]]
Quick = Answered | Work | None  # at once, or by work that is to be awaited; None: there is no quick way


class Method(NamedTuple):
    """One message, one answer.

    `answer` returns a message, or one in the form that it has on the wire. It raises a `HeadgateError` for what is
    the caller's fault, or the store's. `quickly` does the same with a message in the form that it has on the wire,
    where that can be done; nothing has been done if it returns None.
    """

    request: type[Message]
    answer: Callable[[Any], Awaitable[Message | bytes]]
    role: Role | None = "viewer"  # that callers need where the data plane is not open; None: they need none
    size: Callable[[Any], int] | None = None  # how many checks a request asks for; None: one
    quickly: Callable[[bytes], Quick] | None = None


class Flow(NamedTuple):
    """Any number of messages, any number of answers. The rest is as it is with a method."""

    request: type[Message]
    answers: Callable[[AsyncIterator[Any]], AsyncGenerator[Message]]
    role: Role | None = "viewer"


class Service(Protocol):
    """A service of some methods."""

    @property
    def name(self) -> str:
        """Its full name."""
        ...

    @property
    def protocol(self) -> Literal["grpc", "envoy"] | None:
        """The protocol under which the meter counts its calls; None: the meter does not count them."""
        ...

    @property
    def methods(self) -> Mapping[str, Method | Flow]:
        """Its methods by name."""
        ...
