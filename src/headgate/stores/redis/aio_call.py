"""A batch in flight, for asyncio: its commands, and the callers that get the replies or decisions. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from redis.exceptions import NoScriptError

from headgate.errors import StoreError
from headgate.stores.redis.aio_connection import AsyncConnection, Done
from headgate.stores.redis.batcher import BatchedCommand, CallerBatch, Waiting, commands_of
from headgate.stores.redis.denial_cache import DenialCache
from headgate.stores.redis.faults import fault
from headgate.stores.redis.program import Costs, PlanProgram, Subjects
from headgate.stores.redis.script import EncodedCommand


class PlanCheck(Waiting):
    """A caller that waits for the decision on a request of `program`. The store asks `denials` before it."""

    __slots__ = ("_denials", "_epoch", "_program", "_sent_us", "_subjects")

    def __init__(
        self, program: PlanProgram, denials: DenialCache, keys: tuple[str, ...], subjects: Subjects, costs: Costs
    ) -> None:
        self.template = program.template
        self.requests = ((keys, costs, ()),)
        self._program = program
        self._denials = denials
        self._subjects = subjects
        self._sent_us, self._epoch = denials.now_us(), denials.epoch

    def resolve(self, now_us: int, figures: Sequence[Any]) -> None:
        if not self.answer.done():
            keys, costs, _ = self.requests[0]
            decision = self._program.decision(now_us, figures, keys, self._subjects, costs, self._sent_us, self._epoch)
            self.answer.set_result(decision)

    def fail(self, error: StoreError) -> None:
        self._denials.clear()
        super().fail(error)


class BatchCall:
    """A batch in flight to a server."""

    __slots__ = (
        "began",
        "commands",
        "connection",
        "context",
        "encoded",
        "expected",
        "sent",
        "size",
        "until",
        "waiting",
    )

    def __init__(
        self, batch: CallerBatch, connection: AsyncConnection, sent: float, began: float, expected: float
    ) -> None:
        self.waiting, self.size = batch.waiting, batch.size
        self.commands = commands_of(batch)
        self.encoded: list[EncodedCommand] = []
        self.connection = connection
        self.sent, self.expected = sent, expected  # by the event loop's clock
        self.began = began  # by the process clock
        self.until = 0.0  # no caller times out before this
        self.context = Context()  # of its first request, for tracing

    def within(self, callback: Callable[[BatchCall, list[Any] | Exception], None]) -> Done:
        """Return a function that calls `callback` with the outcome, in this call's context."""
        run = self.context.run
        return lambda replies: run(callback, self, replies)

    def refuse(self, error: StoreError) -> None:
        """Fail all callers in it that still wait."""
        for one in self.waiting:
            one.fail(error)


def hand_out(command: BatchedCommand, reply: Any, timeout: float) -> None:
    """Pass the reply to one command to the callers that wait for it."""
    waiting, template = command
    if isinstance(reply, Exception):
        for one in waiting:
            one.fail(fault(reply, timeout))
        return
    if template is None:
        if not waiting[0].answer.done():
            waiting[0].answer.set_result(reply)  # even an error
        return
    now_us, each, at = reply[0], template.figures, 1
    if len(reply) != 1 + each * sum([len(one.requests) for one in waiting]):
        raise ValueError(f"expected {each} figures for each request, got {len(reply) - 1} in all")
    for one in waiting:
        end = at + each * len(one.requests)
        one.resolve(now_us, reply[at:end])
        at = end


def count_replies(commands: list[EncodedCommand]) -> int:
    """Return the number of replies to expect."""
    return sum([1 + command.asking for command in commands])


def without_asking(commands: list[EncodedCommand], replies: list[Any]) -> list[Any]:
    """Return the replies to commands, without those to ASKING."""
    if len(replies) == len(commands):
        return replies
    rest = iter(replies)
    return [next(rest) if not command.asking else (next(rest), next(rest))[1] for command in commands]


def is_unknown(reply: Any) -> bool:
    """Return whether the server does not know the script."""
    return isinstance(reply, NoScriptError)
