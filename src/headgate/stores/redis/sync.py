"""The Redis store for threads: a stack of connections, one of which belongs to a call while it lasts."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from redis.connection import Connection
from redis.exceptions import NoScriptError

from headgate.core.check import Charge, Check, Client, Group, Outcome, Result
from headgate.core.clock import Clock
from headgate.core.decision import Decision, States
from headgate.core.key import key
from headgate.errors import IdempotencyConflict
from headgate.stores.protocol import Single
from headgate.stores.redis import script
from headgate.stores.redis.options import FAULTS, fault, read_url

STALE: Final = 1.0  # seconds without use after which a connection is looked at before it is trusted


class RedisStore:
    """Keeps state in Redis or Valkey. Threads never wait for one another's replies: each call has a connection.

    `clock` is for tests: given one, its time is sent along instead of using the server's.
    """

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._options, kind, arguments = read_url(url)
        self._connection_class: Any = kind or Connection
        self._arguments = {**arguments, "socket_timeout": self._options.timeout}
        self._clock = clock
        self._idle: list[tuple[float, Any]] = []  # when it was last used, and the connection; append and pop are atomic

    def check(self, groups: Sequence[Group]) -> list[Result | IdempotencyConflict]:
        results: list[Result | IdempotencyConflict] = []
        size = self._options.max_batch
        for start in range(0, len(groups), size):
            batch = groups[start : start + size]
            results += script.decode(batch, self._run(script.encode(batch, self._now_us())))
        return results

    def single(self, template: Check, states: States | None = None) -> Single:
        """The short way: the same command and reply, of which all but subject and cost are known beforehand."""
        head, tail = script.frame(template.quota)
        space, templates, run = template.space, (template,), self._run

        def check(subject: str, cost: int) -> Decision:
            sent_us = "" if self._clock is None else self._clock.now_us()
            now_us, wait_us, remaining, reset_us = run((*head, key(space, subject), sent_us, *tail, cost))
            outcomes = (Outcome(wait_us, remaining, reset_us),)
            return Decision(wait_us == 0, now_us, templates, outcomes, cost, None, states, subject)

        return check

    def refund(self, charges: Sequence[Charge]) -> None:
        if charges:
            self._run(script.encode_refund(charges, self._now_us()))

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        if checks or clients:
            self._run(script.encode_reset(checks, clients))

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].disconnect()

    def _now_us(self) -> int | None:
        return None if self._clock is None else self._clock.now_us()

    def _run(self, command: script.Command) -> Any:
        connection = self._take()
        try:
            connection.send_packed_command(script.packed(command), check_health=False)
            try:
                reply = connection.read_response(disable_decoding=True)
            except NoScriptError:  # the server does not know the script yet, or no more: nothing was executed
                connection.send_packed_command(script.packed(script.whole(command)), check_health=False)
                reply = connection.read_response(disable_decoding=True)
        except FAULTS as error:
            connection.disconnect()
            raise fault(error, self._options.timeout) from error
        except BaseException:
            connection.disconnect()
            raise
        self._idle.append((monotonic(), connection))
        return reply

    def _take(self) -> Any:
        """A connection of one's own: the one used last, so that those too many grow old and are not used."""
        while self._idle:
            try:
                used, connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if monotonic() - used < STALE:
                return connection
            try:
                if not connection.can_read(timeout=0):
                    return connection
            except FAULTS:
                pass  # closed by the server while it was idle: nothing was sent, a new one takes its place
            connection.disconnect()
        return self._connection_class(**self._arguments)
