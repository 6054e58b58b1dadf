"""Calls: pass a stream's messages to a method, and its answers back.

After a call is cancelled, or its time is up, its task no longer answers it. What it charged stays charged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from time import perf_counter
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from headgate.service.access import Access
from headgate.service.grpc.call_headers import CallHeaders, MethodRoute
from headgate.service.grpc.framing import HEAD, OK, PREFIX, MessageReader, frame_message, trailers
from headgate.service.grpc.status import Code, Ended, status_of
from headgate.service.http2.allowance import FRAME, units_of_decompressed
from headgate.service.http2.connection import Connection
from headgate.service.http2.frames import CANCEL
from headgate.service.http2.stream import Stream
from headgate.service.rpc.method import Answered, Flow, Method
from headgate.telemetry.meter import OTHER, Meter

BODY_SECONDS: Final = 30.0  # to receive a request's first message, and for the client to read an answer
MAX_HELD: Final = 64 * 1024 * 1024  # bytes of incomplete messages on all connections
MAX_OPEN_MESSAGE: Final = 4_096  # bytes of a message to a method that needs no token
ALWAYS_HELD: Final = 65_536  # bytes of one message that are always accepted

# A context around a call to the data plane, from its protocol and its trace header fields.
Around = Callable[[str, Mapping[str, str]], AbstractContextManager[None]]


class CallContext(NamedTuple):
    """The objects and settings that all calls share."""

    access: Access
    meter: Meter
    around: Around | None
    max_message: int


def call_of(context: CallContext, connection: Connection, number: int, head: CallHeaders) -> Stream:
    """Return the call of a new stream."""
    route = head.route
    if route is None:
        return RefusedCall(context, connection, number, head)
    if isinstance(route.method, Flow):
        return FlowCall(context, connection, number, head, route)
    return UnaryCall(context, connection, number, head, route)


class RefusedCall(Stream):
    """A request that is not a valid call."""

    __slots__ = ("_context", "_head")

    def __init__(self, context: CallContext, connection: Connection, number: int, head: CallHeaders) -> None:
        super().__init__(connection, number, head.length)
        self._context = context
        self._head = head

    def on_headers(self) -> None:
        head = self._head
        self._context.meter.record_response(OTHER, head.status)
        if head.body:
            self.begin(head.refusal)
            self.finish(b"", head.body)
        else:
            self.refuse(head.refusal)

    def on_data(self, data: bytes) -> None:
        pass

    def on_cancel(self) -> None:
        pass

    def look(self, now: float) -> None:
        if now - self.since > BODY_SECONDS:
            self.reset(CANCEL)


class RpcCall(Stream):
    """A call: the base of calls with one message and of calls with a stream of them."""

    __slots__ = ("_context", "_gone", "_head", "_held", "_may", "_method", "_reader", "_route", "_task", "_timer")

    def __init__(
        self, context: CallContext, connection: Connection, number: int, head: CallHeaders, route: MethodRoute
    ) -> None:
        Stream.__init__(self, connection, number, head.length)
        method, access = route.method, context.access
        # Whether the caller is known to be authorized; if not, a lookup may be needed.
        self._may = access.open or (
            method.role is not None and access.admits_at_once(head.token, method.role, connection.address)
        )
        self._context = context
        self._head = head
        self._route = route
        self._method: Any = method
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reader: MessageReader | None = None  # for a message that arrives in parts
        self._held = 0  # bytes of its messages, counted in the hub
        self._gone = False  # whether it is answered, or its client has left

    def on_cancel(self) -> None:
        if not self._gone:
            self._count("CANCELLED")
        self._leave()

    def look(self, now: float) -> None:
        if now - self.since <= BODY_SECONDS:
            return
        if self._gone:  # answered, but the client does not read the answer
            self.reset(CANCEL)
        elif self._task is None:
            self._fail(Ended(Code.DEADLINE_EXCEEDED, f"the request was not here within {BODY_SECONDS:g} seconds"))

    def _read(self, data: bytes) -> list[bytes]:
        """Return the messages that this part completes. Raises `Ended`."""
        reader = self._reader
        if reader is None:
            max_size = self._context.max_message
            if self._method.role is None:
                max_size = min(max_size, MAX_OPEN_MESSAGE)
            reader = self._reader = MessageReader(self._head.encoding, max_size, None if self._may else self._charge)
        messages = reader.feed(data)
        if self.ended and reader.gathered:
            raise Ended(Code.INTERNAL, "the request breaks off within a message")
        return messages

    def _charge(self, decompressed: int) -> None:
        """Count the cost of a message whose sender may be unauthorized. Raises `ProtocolError`."""
        self.charge(FRAME + units_of_decompressed(decompressed))

    def _hold(self, size: int) -> None:
        """Count the bytes of incomplete messages. Raises `Ended` if all calls together hold too many."""
        hub = self.connection.hub
        hub.held += size - self._held
        self._held = size
        if size > ALWAYS_HELD and hub.held > MAX_HELD:
            raise Ended(Code.RESOURCE_EXHAUSTED, "too many large messages are on their way here: try again later")

    async def _require(self) -> None:
        """Authorize the caller. Raises `Unauthenticated` and `Forbidden`."""
        role = self._method.role
        if not self._may and role is not None:
            await self._context.access.require_data(self._head.token, role, self.connection.address)
            self._may = True
        if self._may:
            self.admit()

    def _start(self, work: Any) -> None:
        """Run the call's work in a task, within the caller's deadline."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(work)
        timeout = self._head.timeout
        if timeout is not None:
            self._timer = loop.call_later(timeout, self._expire)

    def _expire(self) -> None:
        if not self._gone:
            self._fail(Ended(Code.DEADLINE_EXCEEDED, "the time that the caller gave is up"))

    def _fail(self, error: Ended) -> None:
        self._count(error.code.name)
        self._leave()
        self.refuse(HEAD + trailers(error.code, error.details))

    def _status_of(self, error: Exception) -> Ended:
        """Return the status that answers an exception."""
        self._context.access.failures.record(self._route.protocol or OTHER, error, self.connection.address)
        return status_of(error, self._route.name)

    def _count(self, status: str) -> None:
        self._context.meter.record_response(self._route.protocol or OTHER, status)

    def _leave(self) -> None:
        """End the call: cancel its task and its timer, and free the memory that it counts."""
        self._gone = True
        if self._held:
            self.connection.hub.held -= self._held
            self._held = 0
        if self._timer is not None:
            self._timer.cancel()
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.get_loop().call_soon(task.cancel)  # not before its first step: its coroutine would never be awaited


class UnaryCall(RpcCall):
    """One message, one answer."""

    __slots__ = ("_request", "_start_time")

    _method: Method
    _request: bytes | None
    _start_time: float

    def on_data(self, data: bytes) -> None:
        if (
            self.ended and self._reader is None and len(data) >= PREFIX.size
        ):  # the whole message at once: the common case
            compressed, size = PREFIX.unpack_from(data)
            if not compressed and PREFIX.size + size == len(data) and size <= self._context.max_message:
                self._request = data[PREFIX.size :]
                self.connection.ready.append(self)
                return
        try:
            self._gather(data)
        except Ended as error:
            self._fail(error)

    def _gather(self, data: bytes) -> None:
        if self._reader is None:
            self._request = None
        for message in self._read(data):
            if self._request is not None:
                raise Ended(Code.INTERNAL, "the request has more than one message")
            self._request = message
        if not self.ended:
            assert self._reader is not None
            self._hold(self._reader.gathered + len(self._request or b""))
        elif self._request is None:
            raise Ended(Code.INTERNAL, "the request has no message")
        else:
            self.connection.ready.append(self)

    def answer(self) -> None:
        """Answer at once if nothing has to be awaited; otherwise in a task. Does nothing if the client is gone."""
        message = self._request
        if self._gone or message is None:
            return
        self._start_time = perf_counter()
        is_traced = self._context.around is not None and self._route.protocol is not None
        if is_traced or not (self._may or self._method.role is None):
            self._start(self._run(self._answer_in_task(message)))
            return
        if self._may:
            self.connection.admit(self)
        try:
            answer = self._method.answer(message)
        except Exception as error:  # noqa: BLE001 - reported to the caller, and logged
            self._answer_error(error)
            return
        if answer.__class__ is tuple:
            self._answer(*answer)
        else:
            self._start(self._run(answer))  # type: ignore[arg-type]

    async def _run(self, answer: Awaitable[Answered]) -> None:
        try:
            sent, checks = await answer
        except Exception as error:  # noqa: BLE001 - reported to the caller, and logged
            self._answer_error(error)
        else:
            self._answer(sent, checks)

    async def _answer_in_task(self, message: bytes) -> Answered:
        """Return the answer to a call whose caller may have to be looked up, within its span if calls are traced."""
        await self._require()
        around, protocol = self._context.around, self._route.protocol
        with nullcontext() if around is None or protocol is None else around(protocol, self._head.carried):
            answer = self._method.answer(message)
            return answer if isinstance(answer, tuple) else await answer

    def _answer(self, sent: bytes, checks: int) -> None:
        meter, protocol = self._context.meter, self._route.protocol
        if protocol is not None:
            meter.record_call(protocol, perf_counter() - self._start_time, checks)
        if not self._gone:
            meter.record_response(protocol or OTHER, "OK")
            self._leave()
            self.since = self.connection.hub.now
            self.respond(HEAD, frame_message(sent), OK)

    def _answer_error(self, error: Exception) -> None:
        protocol = self._route.protocol
        if protocol is not None:
            self._context.meter.record_call(protocol, perf_counter() - self._start_time)
        if not self._gone:
            self._fail(self._status_of(error))


class FlowCall(RpcCall):
    """Any number of messages, any number of answers."""

    __slots__ = ("_begun", "_messages")

    def __init__(
        self, context: CallContext, connection: Connection, number: int, head: CallHeaders, route: MethodRoute
    ) -> None:
        super().__init__(context, connection, number, head, route)
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._begun = False  # whether an answer was sent

    def on_data(self, data: bytes) -> None:
        try:
            messages = self._read(data)
            assert self._reader is not None
            self._hold(self.taken)
        except Ended as error:
            self._fail(error)
            return
        for message in messages:
            self._messages.put_nowait(message)
        if self.ended:
            self._messages.put_nowait(None)
        if self._task is None and (messages or self.ended):
            self._start(self._run())

    async def _requests(self) -> AsyncIterator[Message]:
        method = self._route.method
        assert isinstance(method, Flow)
        while (message := await self._messages.get()) is not None:
            if self._messages.empty():
                self.give_back()
                self._hold(0)
            if self._may:
                self.admit()
            yield method.request.FromString(message)

    async def _run(self) -> None:
        method = self._route.method
        assert isinstance(method, Flow)
        try:
            await self._require()
            async with aclosing(method.answers(self._requests())) as answers:
                async for answer in answers:
                    if not self._begun:
                        self._begun = True
                        self.begin(HEAD)
                    await self.send(frame_message(answer.SerializeToString()))
        except Exception as error:  # noqa: BLE001 - reported to the caller, and logged
            if not self._gone:
                self._fail(self._status_of(error))
        else:
            if not self._gone:
                self._count("OK")
                self._leave()
                if not self._begun:
                    self.begin(HEAD)
                self.finish(OK)

    def _fail(self, error: Ended) -> None:
        if not self._begun:
            super()._fail(error)
        else:
            self._count(error.code.name)
            self._leave()
            self.refuse(trailers(error.code, error.details))
