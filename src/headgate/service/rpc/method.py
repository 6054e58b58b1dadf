"""Method and Flow: remote procedures, as a transport needs to know them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from google.protobuf.message import Message

from headgate.operations.caller import Role

Answered = tuple[bytes, int]  # the answer, and how many checks there were


class Method(NamedTuple):
    """One message, one answer, both in the form that they have on the wire.

    `answer` returns the answer itself where nothing has to be awaited, as in memory, or something to await for it. It
    raises a `HeadgateError` for what is the caller's fault, or the store's.
    """

    answer: Callable[[bytes], Answered | Awaitable[Answered]]
    role: Role | None = "viewer"  # that callers need where the data plane is not open; None: they need none


def method_of(request: type[Message], answer: Callable[[Any], Awaitable[Message]], role: Role | None) -> Method:
    """Return a method of which `answer` takes a message of this type, and returns one."""

    async def answered(received: bytes) -> Answered:
        answer_message = await answer(request.FromString(received))
        return answer_message.SerializeToString(), 1

    return Method(answered, role)


class Flow(NamedTuple):
    """Any number of messages, any number of answers. `role` is as it is with a method."""

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
