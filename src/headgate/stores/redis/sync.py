"""The Redis store for threads: a stack of connections, one of which belongs to a call while it lasts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any
from weakref import WeakSet

from redis.exceptions import NoScriptError

from headgate.core.check import Charge, Check, Client, Group, Outcome, Result
from headgate.core.clock import Clock
from headgate.core.decision import Decision, States, single
from headgate.core.key import key
from headgate.core.reservation import Claim, Expired
from headgate.errors import IdempotencyConflict, StoreUnavailable
from headgate.stores.observer import StoreObserver
from headgate.stores.protocol import Single
from headgate.stores.redis import reservations, script
from headgate.stores.redis.options import FAULTS, fault, read_url
from headgate.stores.redis.wire import Wire


class RedisStore:
    """Keeps state in Redis or Valkey. Threads never wait for one another's replies: each call has a connection.

    `clock` is for tests: given one, its time is sent along instead of using the server's. `observer` is told of
    every call.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, observer: StoreObserver | None = None) -> None:
        self._options, self._kind, self._arguments = read_url(url)
        self._clock = clock
        self._observer = observer
        self._idle: list[Wire] = []
        _stores.add(self)

    def check(self, groups: Sequence[Group]) -> list[Result | IdempotencyConflict]:
        results: list[Result | IdempotencyConflict] = []
        size = self._options.max_batch
        for start in range(0, len(groups), size):
            batch = groups[start : start + size]
            results += script.decode(batch, self._run(script.encode(batch, self._now_us()), groups=len(batch)))
        return results

    def single(self, template: Check, states: States | None = None) -> Single:
        """The short way: the same command and reply, of which all but subject and cost are known beforehand."""
        head, tail = script.frame(template.quota)
        pack, space, templates, run = script.packer(template.quota), template.space, (template,), self._run

        def check(subject: str, cost: int) -> Decision:
            name = key(space, subject)
            sent_us: script.Argument = "" if self._clock is None else self._clock.now_us()
            reply = run((*head, name, sent_us, *tail, cost), pack(name, sent_us, cost), 1)
            now_us, wait_us, remaining, reset_us = reply
            return single(templates, Outcome(wait_us, remaining, reset_us), now_us, cost, states, subject)

        return check

    def refund(self, charges: Sequence[Charge]) -> None:
        if charges:
            self._run(script.encode_refund(charges, self._now_us()))

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        if checks or clients:
            self._run(script.encode_reset(checks, clients))

    def hold(self, reservation_id: str, record: str, ttl_us: int) -> None:
        self._run(reservations.encode_hold(reservation_id, record, ttl_us, self._now_us()))

    def claim(self, reservation_id: str) -> Claim | None:
        return reservations.decode_claim(self._run(reservations.encode_claim(reservation_id, self._now_us())))

    def expire(self) -> Expired:
        return reservations.decode_expire(self._run(reservations.encode_expire(self._now_us())))

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> None:
        if refunds or surcharges:
            self._run(reservations.encode_adjust(refunds, surcharges, self._now_us()))

    def close(self) -> None:
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):  # another thread may empty it at the same time
            while True:
                self._idle.pop().close()

    def _now_us(self) -> int | None:
        return None if self._clock is None else self._clock.now_us()

    def _run(self, command: script.Command, packed: bytes | None = None, groups: int = 0) -> Any:
        timeout = self._options.timeout
        deadline = monotonic() + timeout
        observer = self._observer
        wire: Wire | None = None
        try:
            wire = self._take() or Wire(self._options, self._kind, self._arguments, deadline)
            try:
                reply = wire.ask(script.packed(command) if packed is None else packed, deadline)
            except NoScriptError:  # the server does not know the script yet, or no more: nothing was executed
                reply = wire.ask(script.packed(script.whole(command)), deadline)
        except FAULTS as error:
            if wire is not None:
                wire.close()
            known = fault(error, timeout)
            if isinstance(known, StoreUnavailable):
                self._close_idle()  # they may well be as dead as this one was
            if observer is not None:
                observer.failed(known, monotonic() - deadline + timeout, groups)
            raise known from error
        except BaseException:
            if wire is not None:
                wire.close()
            raise
        self._idle.append(wire)
        if observer is not None:
            observer.called(monotonic() - deadline + timeout, groups)
        return reply

    def _take(self) -> Wire | None:
        """An idle connection: the one used last, so that those too many are not used and nobody minds them."""
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:  # none left; append and pop are atomic, and another thread may be faster
                return None
            if wire.is_good():
                return wire
            wire.close()


def _forget_connections() -> None:
    """In a forked child: they are the parent's."""
    for store in _stores:
        store._idle = []


_stores: WeakSet[RedisStore] = WeakSet()
os.register_at_fork(after_in_child=_forget_connections)
