"""One server, for threads: a few connections that all threads share, and its breaker.

A thread that finds a connection idle uses it by itself. Others queue: whoever is done with a connection sends off what
has queued meanwhile, as one trip, and has the first of those threads read the replies for all. Connections are opened
one at a time, in the background, and within a budget of their own. So is what takes longer than its callers can wait:
a late reply is read by a thread of its own, and tells that the server is alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final

from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeout

from headgate.errors import StoreError, StoreTimeout, StoreUnavailable
from headgate.stores.breaker import GRACE_SECONDS
from headgate.stores.observer import StoreObserver
from headgate.stores.process_clock import PROCESS, acquire
from headgate.stores.redis.faults import FAULTS, fault
from headgate.stores.redis.health import breaker_of, left_alone, replaced, tell
from headgate.stores.redis.options import Options, Way
from headgate.stores.redis.parcel import Parcel
from headgate.stores.redis.trip import ThreadCall, Trip
from headgate.stores.redis.wire import Wire

NEVER: Final = float("-inf")
OWED: Final = 4_096  # checks in the queue; with as many, no more are charged that nobody waits for


class Node:
    """A server. `leave` and then `arrive`: between them, calls to other servers can be on their way."""

    def __init__(self, way: Way, options: Options, observer: StoreObserver | None) -> None:
        self.name = way.name
        self.host: str = way.arguments.get("host", "localhost")
        self.breaker = breaker_of(way.name, options, observer)
        self._way = way
        self._options = options
        self._observer = observer
        self._begin()

    def _begin(self) -> None:
        self._lock = Lock()  # held while the queue is served, never while anything is waited for
        self._idle: list[Wire] = []
        self._queue: deque[ThreadCall] = deque()
        self._open = 0  # connections, idle and in use
        self._opening_since: float | None = None  # by the process clock
        self._enough_until = NEVER  # no more connections are opened beside those that are open, by time.monotonic
        self._closed = 0  # how often

    def ask(self, parcel: Parcel, deadline: float) -> Any:
        """The reply to one check, which may be an exception of redis-py. Raises `StoreError` when there is none.

        What `leave` and `arrive` do, without a trip unless it takes one.
        """
        wire = self._take() if self.breaker.state == "closed" and not self._queue else None
        if wire is None:
            return self.arrive(self.leave((parcel,), deadline, 1))[0]
        began = monotonic()
        try:
            wire.send(parcel.packed or parcel.bytes(), deadline)
            reply = wire.receive(deadline)
        except FAULTS as error:
            call = ThreadCall((parcel,), deadline, 1)
            self._interrupt(call, Trip(wire, (call,), PROCESS.now(began)), error)
            return self.arrive(call)[0]
        except BaseException:
            self._discard(wire)
            raise
        if reply.__class__ is NoScriptError:
            call = ThreadCall((parcel,), deadline, 1)
            call.trip = Trip(wire, (call,), PROCESS.now(began))
            call.trip.send_again()
            return self.arrive(call)[0]
        self.breaker.hear(PROCESS.now(wire.used))
        self._give_back(wire)
        if self._observer is not None:
            tell(self._observer, (reply,), wire.used - began, 1, self._options.timeout)
        return reply

    def leave(self, parcels: Sequence[Parcel], deadline: float, groups: int = 0) -> ThreadCall:
        """Send parcels, or queue them. Raises `StoreError`: unless it says otherwise, they were not sent."""
        if self.breaker.state != "closed":
            if not self._may_wait(PROCESS.read()):
                raise left_alone(self.name, self.breaker.why)
            deadline = min(deadline, self.breaker.grace_ends)
        call = ThreadCall(parcels, deadline, groups)
        if self._queue or not self._send_alone(call):
            call.queued = PROCESS.read()
            self._queue.append(call)
            self._serve()
        return call

    def arrive(self, call: ThreadCall) -> list[Any]:
        """The replies, once `leave` has taken the parcels. Raises `StoreError`."""
        while not self.wait(call, call.deadline):
            pass
        return call.replies

    def wait(self, call: ThreadCall, until: float) -> bool:
        """Wait for the replies until then, by the process clock. Return whether they are there. Raises `StoreError`."""
        if call.trip is not None:
            self._read(call, call.trip, until)
        elif not call.is_done:
            try:
                if acquire(call.news, until):
                    call.told = False
            except BaseException:
                self._leave_to_others(call, StoreUnavailable("the caller was interrupted"))
                raise
        if call.error is not None:
            raise call.error
        if not call.missing:
            return True
        if call.trip is None and PROCESS.read() >= call.deadline:
            self._give_up(call)
        return False

    def close(self) -> None:
        """Give back idle connections; those in use are closed when they are given back."""
        with self._lock:
            self._closed += 1
        self._doubt(float("inf"))

    def retire(self) -> None:
        """Refuse those who have not been sent yet: another server is the master now."""
        self._refuse_queue(replaced(self.name))

    def forget(self) -> None:
        """In a forked child: the connections are the parent's."""
        self._begin()
        self.breaker.forked()

    # Trips

    def _send_alone(self, call: ThreadCall) -> bool:
        """Send a call off on an idle connection, if there is one. Its own thread will read the reply."""
        wire = self._take()
        if wire is None:
            return False
        self._depart(Trip(wire, (call,), PROCESS.read()), wakes=False)
        return True

    def _serve(self) -> None:
        """Send off what has queued, as far as connections are idle; if none is, open one more."""
        while self._queue and self.breaker.state == "closed":
            wire = self._take()
            if wire is None:
                self._open_another()
                if not self._idle:  # whoever gives one back from now on finds the queue
                    return
                continue
            now = PROCESS.read()
            with self._lock:
                calls: list[ThreadCall] = []
                while self._queue and len(calls) < self._options.max_batch:
                    call = self._queue.popleft()
                    # What nobody waits for any more would be charged to another time, if it came much later.
                    if not call.is_done and (call.is_waited_for or now < call.deadline + GRACE_SECONDS):
                        calls.append(call)
                        call.deadline += now - call.queued  # the queue has a time of its own
            if calls:
                self._depart(Trip(wire, calls, now))
            else:
                self._give_back(wire)

    def _depart(self, trip: Trip, *, wakes: bool = True) -> None:
        """Send a trip off. One of its threads is to read the replies."""
        self.breaker.ask(trip.began)
        try:
            trip.send(trip.began + self._options.timeout)
        except FAULTS as error:
            self._break_off(trip, error)
            return
        except BaseException:
            self._discard(trip.wire)
            trip.fail(StoreUnavailable("the call to Redis broke off"))
            raise
        with self._lock:  # nobody's time is up meanwhile
            reader = next((call for call in trip.calls if call.is_waited_for and not call.is_done), None)
            if reader is not None:
                reader.trip = trip
        if reader is None:
            self._run(self._read_late, trip)
        elif wakes:
            reader.wake()

    def _read(self, call: ThreadCall, trip: Trip, until: float) -> None:
        """Read a trip's replies, for all who wait for them. Whoever runs out of time leaves that to another thread."""
        call.trip = None
        call.heed()
        now = PROCESS.read()
        try:
            trip.read(now, until)
        except FAULTS as error:
            self._interrupt(call, trip, error)
        except BaseException:
            self._discard(trip.wire)
            trip.fail(StoreUnavailable("the call to Redis broke off"))
            raise
        else:
            self._end(trip)

    def _interrupt(self, call: ThreadCall, trip: Trip, error: Exception) -> None:
        """A thread has not read all replies of its trip."""
        if isinstance(error, RedisTimeout):
            if PROCESS.read() < call.deadline:  # the wait was for a part of its time
                call.trip = trip
            else:
                self._listen(trip.began)
                self._run(self._read_late, trip)
        else:
            self._break_off(trip, error)

    def _read_late(self, trip: Trip) -> None:
        """Wait for replies that are late, in a thread of its own."""
        timeout = self._options.timeout
        try:
            try:
                trip.read(trip.began, trip.began + timeout)
            except RedisTimeout:
                self._listen(trip.began)
                trip.read(trip.began + timeout, trip.began + self._options.patience)
        except FAULTS as error:
            self._break_off(trip, error)
        else:
            self._end(trip)

    def _end(self, trip: Trip) -> None:
        """All replies of a trip are there."""
        self.breaker.hear(PROCESS.now(trip.wire.used))
        self._give_back(trip.wire)
        if self._observer is not None:
            seconds, timeout = trip.wire.used - trip.calls[0].began, self._options.timeout
            for call in trip.calls:
                tell(self._observer, call.replies, seconds, call.groups, timeout)
        if self.breaker.state != "closed":
            self._may_wait(PROCESS.read())

    def _break_off(self, trip: Trip, error: Exception) -> None:
        """A connection failed."""
        self._discard(trip.wire)
        known = fault(error, self._options.timeout)
        if not isinstance(error, RedisTimeout):  # of which `_listen` knows
            self._note_failure(trip.began, trip.calls[0].began, known)
        if self._observer is not None:
            for call in trip.calls:
                if not call.is_done:
                    self._observer.failed(known, monotonic() - call.began, call.groups)
        trip.fail(known)
        self._serve()

    def _give_up(self, call: ThreadCall) -> None:
        """A thread's time is up: raise that, unless there are news right now."""
        known = fault(TimeoutError(), self._options.timeout)
        if self._opening_since is not None:
            self._listen(self._opening_since)
        with self._lock:
            is_queued = call in self._queue
        if is_queued and call.groups and isinstance(known, StoreTimeout):
            known.charge_later = partial(self._owe, call)
        if self._leave_to_others(call, known):
            if self._observer is not None:
                self._observer.failed(known, monotonic() - call.began, call.groups)
            raise known

    def _owe(self, call: ThreadCall) -> None:
        """Have a check charged whose thread does not wait any more."""
        owed = ThreadCall(call.parcels, call.deadline, call.groups)
        owed.is_waited_for, owed.queued = False, PROCESS.read()
        with self._lock:
            if len(self._queue) >= OWED:
                return
            self._queue.append(owed)
        self._serve()

    def _leave_to_others(self, call: ThreadCall, error: StoreError) -> bool:
        """End a call for which nobody waits any more. Return whether there are no news of it."""
        with self._lock:
            with suppress(ValueError):
                self._queue.remove(call)
            trip, is_done = call.trip, call.is_done
            if trip is None and not is_done:
                call.error = error
        if trip is not None and isinstance(error, StoreUnavailable):
            self._run(self._read_late, trip)
        return trip is None and not is_done

    # Health

    def _may_wait(self, now: float) -> bool:
        """Begin a probe if one is due. Return whether callers may wait for its answer."""
        if self.breaker.begin_probe(now):
            self._run_opener()
        return self.breaker.may_wait(now)

    def _listen(self, began: float) -> None:
        """Open the breaker if nothing was heard since then for the whole timeout."""
        now, timeout = PROCESS.read(), self._options.timeout
        if self.breaker.state == "closed" and self.breaker.is_silent(now, began, timeout):
            self.breaker.open(now, str(fault(TimeoutError(), timeout)))
            self._doubt(monotonic() - timeout)
            self._turn_away(now)

    def _note_failure(self, began: float, since: float, known: StoreError) -> None:
        """Tell the breaker; if it is news, doubt other connections as well."""
        now = PROCESS.read()
        if self.breaker.fail(now, began, str(known)):
            self._doubt(since)
        if self.breaker.state != "closed":
            self._turn_away(now)

    def _turn_away(self, now: float) -> None:
        """Refuse those who have queued, unless they may wait for a probe."""
        if not self._may_wait(now):
            self._refuse_queue(left_alone(self.name, self.breaker.why))

    def _refuse_queue(self, error: StoreError) -> None:
        with suppress(IndexError):
            while True:
                call = self._queue.popleft()
                if self._observer is not None and call.is_waited_for and not call.is_done:
                    self._observer.failed(error, monotonic() - call.began, call.groups)
                call.fail(error)

    # Connections

    def _take(self) -> Wire | None:
        """An idle connection: the one used last, so that those too many are not used and nobody minds them."""
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:  # none left; append and pop are atomic, and another thread may be faster
                return None
            if wire.is_good():
                return wire
            self._discard(wire)

    def _give_back(self, wire: Wire) -> None:
        if wire.generation != self._closed:  # it was closed meanwhile
            self._discard(wire)
            return
        self._idle.append(wire)
        if self._queue:
            self._serve()

    def _discard(self, wire: Wire) -> None:
        wire.close()
        with self._lock:
            self._open -= 1

    def _doubt(self, since: float) -> None:
        """Close idle connections that were not used since then: they may be as dead as one on which a call failed."""
        good = []
        with suppress(IndexError):
            while True:
                wire = self._idle.pop()
                if wire.used >= since:
                    good.append(wire)
                else:
                    self._discard(wire)
        self._idle += good

    def _open_another(self) -> None:
        """Open one more connection in the background, unless there are enough or one is being opened."""
        if self._opening_since is None and self._open < self._options.max_in_flight:
            if self._open and monotonic() < self._enough_until:
                return
            self._run_opener()

    def _run_opener(self) -> None:
        with self._lock:
            if self._opening_since is not None:
                return
            self._opening_since = now = PROCESS.read()
            self._open += 1
        self.breaker.ask(now)
        self._run(self._connect)

    def _connect(self) -> None:
        generation = self._closed
        try:
            deadline = PROCESS.read() + self._options.patience
            wire = Wire(self._way, self._options.timeout, deadline, PROCESS.read)
        except (*FAULTS, ValueError) as error:  # the latter: of a host name that is none
            with self._lock:
                self._open -= 1
                self._opening_since = None
            self._refuse_opening(error)
            return
        wire.generation = generation
        now = PROCESS.read()
        if self._open == 1:  # this one: nothing of those who have queued was under way before
            with self._lock:
                for call in tuple(self._queue):
                    call.deadline, call.queued = max(call.deadline, now + self._options.timeout), now
        self.breaker.hear(now)
        if self.breaker.state != "closed":
            self.breaker.close(now)
        self._opening_since = None
        self._give_back(wire)

    def _refuse_opening(self, error: Exception) -> None:
        """There is not one connection more."""
        known = fault(error, self._options.timeout, sent=False)
        self._enough_until = monotonic() + self._options.probe_every
        self._note_failure(float("inf"), monotonic(), known)
        if self.breaker.state == "closed" and not self._open:
            self._refuse_queue(known)

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        """Have something done in a thread of its own; here, where there can be no more threads."""
        try:
            Thread(target=work, args=arguments, name="headgate-redis", daemon=True).start()
        except RuntimeError:
            work(*arguments)
