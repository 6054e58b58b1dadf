"""Method and Flow: remote procedures as a transport sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from google.protobuf.message import Message

from headgate.operations.caller import Role

Answered = tuple[bytes, int]  # the answer, and the number of checks


class Method(NamedTuple):
    """A method with one request and one answer, both encoded.

    `answer` returns the answer itself if nothing has to be awaited, as with the memory store, or else an awaitable. It
    raises a `HeadgateError` for an error of the caller or the store.
    """

    answer: Callable[[bytes], Answered | Awaitable[Answered]]
    role: Role | None = "viewer"  # that callers need if the data plane requires tokens; None: no role


def method_of(request: type[Message], answer: Callable[[Any], Awaitable[Message]], role: Role | None) -> Method:
    """Return a method from an `answer` that takes a message of this type, and returns a message."""

    async def answer_bytes(received: bytes) -> Answered:
        answer_message = await answer(request.FromString(received))
        return answer_message.SerializeToString(), 1

    return Method(answer_bytes, role)


class Flow(NamedTuple):
    """A method with streams of requests and answers. `role` is as in `Method`."""

    request: type[Message]
    answers: Callable[[AsyncIterator[Any]], AsyncGenerator[Message]]
    role: Role | None = "viewer"


class Service(Protocol):
    """A gRPC service."""

    @property
    def name(self) -> str:
        """The service's full name."""
        ...

    @property
    def protocol(self) -> Literal["grpc", "envoy"] | None:
        """The protocol under which the meter counts its calls; None: the meter does not count them."""
        ...

    @property
    def methods(self) -> Mapping[str, Method | Flow]:
        """The service's methods by name."""
        ...
