"""One server, for threads: its connections, of which one belongs to a call while it lasts, and its breaker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, NamedTuple

from redis.exceptions import NoScriptError

from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.breaker import Breaker, State
from headgate.stores.observer import StoreObserver
from headgate.stores.redis import script
from headgate.stores.redis.faults import FAULTS, fault, redirected
from headgate.stores.redis.options import Options, Way
from headgate.stores.redis.wire import Wire

ASKING: Final = script.packed(("ASKING",))

log = logging.getLogger("headgate.breaker")


class Parcel(NamedTuple):
    """A command for a server."""

    command: script.Command
    asking: bool = False  # of a slot that it is about to take over
    packed: bytes | None = None  # the command as it goes over the wire, if that is known

    def bytes(self, *, whole: bool = False) -> bytes:
        """As it goes over the wire. `whole`: with the text of its script."""
        packed = script.packed(script.whole(self.command)) if whole else self.packed or script.packed(self.command)
        return ASKING + packed if self.asking else packed


class Trip(NamedTuple):
    """Parcels on their way to a server and back."""

    parcels: Sequence[Parcel]
    wire: Wire
    began: float
    groups: int


class Node:
    """A server. `leave` and then `arrive`: between them, calls to other servers can be on their way."""

    def __init__(self, way: Way, options: Options, observer: StoreObserver | None) -> None:
        self.name = way.name
        self.host: str = way.arguments.get("host", "localhost")
        self._way = way
        self._options = options
        self._observer = observer
        self.breaker = breaker_of(way.name, options, observer)
        self._idle: list[Wire] = []

    def ask(self, parcel: Parcel, deadline: float) -> Any:
        """The reply to one check, which may be an exception of redis-py. Raises `StoreError` when there is none.

        What `leave` and `arrive` do, without a list.
        """
        began = deadline - self._options.timeout
        breaker = self.breaker
        if breaker.state != "closed" and not breaker.admits(began):
            raise left_alone(self.name, breaker.why)
        wire, sent = None, False
        try:
            wire = self._take() or Wire(self._way, self._options.timeout, deadline)
            sent = True
            wire.send(parcel.packed or parcel.bytes(), deadline)
            reply = wire.receive(deadline)
            if reply.__class__ is NoScriptError:  # it does not know the script yet, or no more: nothing was executed
                wire.send(parcel.bytes(whole=True), deadline)
                reply = wire.receive(deadline)
        except BaseException as error:
            if wire is not None:
                wire.close()
            if isinstance(error, FAULTS):
                raise self._failed(error, began, 1, sent=sent) from error
            raise
        self._idle.append(wire)
        seconds = wire.used - began
        breaker.answered(wire.used, seconds)
        if self._observer is not None:
            tell(self._observer, (reply,), seconds, 1, self._options.timeout)
        return reply

    @property
    def connected(self) -> bool:
        """Whether there is a connection that nobody uses."""
        return bool(self._idle)

    def leave(self, parcels: Sequence[Parcel], deadline: float, groups: int = 0) -> Trip:
        """Send parcels. Raises `StoreError`: unless it says otherwise, they were not sent."""
        began = monotonic()
        if not self.breaker.admits(began):
            raise left_alone(self.name, self.breaker.why)
        wire: Wire | None = None
        try:
            wire = self._take() or Wire(self._way, self._options.timeout, deadline)
        except FAULTS as error:
            raise self._failed(error, began, groups, sent=False) from error
        try:
            wire.send(parcels[0].bytes() if len(parcels) == 1 else b"".join(map(Parcel.bytes, parcels)), deadline)
        except BaseException as error:
            wire.close()
            if isinstance(error, FAULTS):
                raise self._failed(error, began, groups) from error
            raise
        return Trip(parcels, wire, began, groups)

    def arrive(self, trip: Trip, deadline: float, *, hurry: bool = False) -> list[Any]:
        """The replies, once `leave` has sent the parcels. `hurry`: other servers were waited for meanwhile."""
        parcels, wire, began, groups = trip
        try:
            if hurry:
                wire.hurry(deadline)
            replies = self._read(parcels, wire, deadline)
            unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if unknown:  # the server does not know the script yet, or no more: nothing was executed
                again = [parcels[place] for place in unknown]
                wire.send(b"".join(parcel.bytes(whole=True) for parcel in again), deadline)
                for place, reply in zip(unknown, self._read(again, wire, deadline), strict=True):
                    replies[place] = reply
        except BaseException as error:
            wire.close()
            if isinstance(error, FAULTS):
                raise self._failed(error, began, groups) from error
            raise
        self._idle.append(wire)
        now = monotonic()
        self.breaker.answered(now, now - began)
        if self._observer is not None:
            tell(self._observer, replies, now - began, groups, self._options.timeout)
        return replies

    def close(self) -> None:
        """Give back idle connections."""
        with suppress(IndexError):  # another thread may empty it at the same time
            while True:
                self._idle.pop().close()

    def forget(self) -> None:
        """In a forked child: the connections are the parent's."""
        self._idle = []
        self.breaker.forked()

    def _read(self, parcels: Sequence[Parcel], wire: Wire, deadline: float) -> list[Any]:
        replies = []
        for parcel in parcels:
            if parcel.asking:
                wire.receive(deadline)
            replies.append(wire.receive(deadline))
        return replies

    def _failed(self, error: Exception, began: float, groups: int, *, sent: bool = True) -> StoreError:
        now = monotonic()
        known = fault(error, self._options.timeout, sent=sent)
        if self.breaker.failed(now, now - began, str(known)):
            self._doubt(began)
        if self._observer is not None:
            self._observer.failed(known, now - began, groups)
        return known

    def _doubt(self, began: float) -> None:
        """End idle connections that may well be as dead as one on which a call failed: not those used since then."""
        good = []
        with suppress(IndexError):
            while True:
                wire = self._idle.pop()
                if wire.used >= began:
                    good.append(wire)
                else:
                    wire.close()
        self._idle += good

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


def tell(observer: StoreObserver, replies: Sequence[Any], seconds: float, groups: int, timeout: float) -> None:
    """Tell of a call that was answered, be it with errors."""
    for reply in replies:
        if isinstance(reply, Exception) and not redirected(reply):
            observer.failed(fault(reply, timeout), seconds, groups)
            return
    observer.called(seconds, groups)


def breaker_of(name: str, options: Options, observer: StoreObserver | None) -> Breaker:
    """The breaker of a server: it logs its changes, and tells `observer`."""

    def changed(state: State, before: State) -> None:
        # Between open and half-open it goes to and fro as long as the server is away.
        level = logging.WARNING if "closed" in (state, before) else logging.DEBUG
        why = f" ({breaker.why or 'it is slow'})" if state == "open" else ""
        log.log(level, "Redis at %s: breaker %s%s", name, state.replace("_", "-"), why)
        if observer is not None:
            observer.breaker(name, state)

    breaker = Breaker(options.timeout, changed, probe_every=options.probe_every)
    if observer is not None:
        observer.breaker(name, "closed")
    return breaker


def left_alone(name: str, why: str) -> StoreUnavailable:
    """What those get whom the breaker does not let through."""
    what = f"failed of late ({why})" if why else "was slow of late"
    return StoreUnavailable(f"Redis at {name} {what}, and is left alone but for a probe at times", sent=False)
