"""One server, for threads: a few connections that all threads share, and its breaker.

A thread that finds an idle connection uses it alone. Others queue: a thread that returns a connection sends everything
that has queued in the meantime, and the first of those threads reads the replies for all. A separate thread reads late
replies, because they show that the server is alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, Final

from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeout

from headgate.errors import StoreError, StoreTimeout, StoreUnavailable
from headgate.stores.breaker import GRACE_SECONDS
from headgate.stores.process_clock import PROCESS, acquire
from headgate.stores.protocol import StoreObserver
from headgate.stores.redis.connection import ThreadConnection
from headgate.stores.redis.faults import (
    FAULTS,
    breaker_of,
    circuit_open_error,
    fault,
    replaced_master_error,
    report_call,
)
from headgate.stores.redis.in_flight import InFlight, ThreadCall
from headgate.stores.redis.options import ConnectionParams, RedisOptions
from headgate.stores.redis.pool import ConnectionPool, run_in_thread
from headgate.stores.redis.script import EncodedCommand, pack

MAX_CHARGED_LATER: Final = 4_096  # checks in the queue; beyond that, checks without a waiting caller are not charged


class ServerNode:
    """A server. Call `submit`, then `result`: between them, calls to other servers can be in flight."""

    def __init__(self, params: ConnectionParams, options: RedisOptions, observer: StoreObserver | None) -> None:
        self.name = params.name
        self.host: str = params.arguments.get("host", "localhost")
        self.breaker = breaker_of(params.name, options.probe_every, observer)
        self._params = params
        self._options = options
        self._observer = observer
        self._begin()

    def _begin(self) -> None:
        self._lock = Lock()  # held while the queue is served, never while waiting
        self._queue: deque[ThreadCall] = deque()
        self._connections = ConnectionPool(self._params, self._options, self.breaker)

    def ask(self, command: EncodedCommand, deadline: float) -> Any:
        """Return the reply to one check, which may be an exception of redis-py. Raises `StoreError` if there is none.

        It does what `submit` and `result` do, but creates an `InFlight` only if it needs one.
        """
        connection = self._connections.take() if self.breaker.state == "closed" and not self._queue else None
        if connection is None:
            return self.result(self.submit((command,), deadline, 1))[0]
        began = monotonic()
        try:
            packed = command.packed
            if packed is None or command.command[1] not in connection.scripts:
                packed = pack((command,), connection.scripts)
            connection.send(packed, deadline)
            reply = connection.receive(deadline)
        except FAULTS as error:
            call = ThreadCall((command,), deadline, 1)
            self._interrupt(call, InFlight(connection, (call,), PROCESS.now(began)), error)
            return self.result(call)[0]
        except BaseException:
            self._connections.discard(connection)
            raise
        if reply.__class__ is NoScriptError:
            call = ThreadCall((command,), deadline, 1)
            call.in_flight = InFlight(connection, (call,), PROCESS.now(began))
            call.in_flight.send_again()
            return self.result(call)[0]
        self.breaker.hear(PROCESS.now(connection.used))
        if self._connections.give_back(connection) and self._queue:
            self._serve()
        if self._observer is not None:
            report_call(self._observer, (reply,), connection.used - began, 1, self._options.timeout)
        return reply

    def submit(self, commands: Sequence[EncodedCommand], deadline: float, groups: int = 0) -> ThreadCall:
        """Send commands, or queue them. Raises `StoreError`: they were not sent unless it says otherwise."""
        if self.breaker.state != "closed":
            if not self._may_wait(PROCESS.read()):
                raise circuit_open_error(self.name, self.breaker.why)
            deadline = min(deadline, self.breaker.grace_ends)
        call = ThreadCall(commands, deadline, groups)
        if self._queue or not self._send_alone(call):
            call.queued = PROCESS.read()
            self._queue.append(call)
            self._serve()
        return call

    def result(self, call: ThreadCall) -> list[Any]:
        """Return the replies to a call from `submit`. Raises `StoreError`."""
        while not self.wait(call, call.deadline):
            pass
        return call.replies

    def wait(self, call: ThreadCall, until: float) -> bool:
        """Wait for the replies until `until`, by the process clock. Return whether they came. Raises `StoreError`."""
        if call.in_flight is not None:
            self._read(call, call.in_flight, until)
        elif not call.is_done:
            try:
                if acquire(call.notification, until):
                    call.is_notified = False
            except BaseException:
                self._abandon(call, StoreUnavailable("the caller was interrupted"))
                raise
        if call.error is not None:
            raise call.error
        if not call.missing:
            return True
        if call.in_flight is None and PROCESS.read() >= call.deadline:
            self._give_up(call)
        return False

    def close(self) -> None:
        """Close idle connections; those in use are closed when they are returned."""
        self._connections.close()

    def retire(self) -> None:
        """Refuse calls that have not been sent yet: another server is now the master."""
        self._refuse_queue(replaced_master_error(self.name))

    def forget(self) -> None:
        """Reset in a forked child: the connections are the parent's."""
        self._begin()
        self.breaker.reset_after_fork()

    # Calls

    def _send_alone(self, call: ThreadCall) -> bool:
        """Send a call on an idle connection, if there is one. Its own thread reads the reply."""
        connection = self._connections.take()
        if connection is None:
            return False
        self._send(InFlight(connection, (call,), PROCESS.read()), wakes=False)
        return True

    def _serve(self) -> None:
        """Send queued calls, as far as connections are idle; if none is, open one more."""
        while self._queue and self.breaker.state == "closed":
            connection = self._connections.take()
            if connection is None:
                self._connections.open_another(self._on_connection)
                if not self._connections.idle:  # from now on, a thread that returns one sees the queue
                    return
                continue
            now = PROCESS.read()
            with self._lock:
                calls: list[ThreadCall] = []
                while self._queue and len(calls) < self._options.max_batch:
                    call = self._queue.popleft()
                    # Without a waiting caller, a check that is sent much later would be charged to another period.
                    if not call.is_done and (call.is_waited_for or now < call.deadline + GRACE_SECONDS):
                        calls.append(call)
                        call.deadline += now - call.queued  # the time in the queue counts separately
            if calls:
                self._send(InFlight(connection, calls, now))
            elif self._connections.give_back(connection) and self._queue:
                self._serve()

    def _send(self, in_flight: InFlight, *, wakes: bool = True) -> None:
        """Send calls. One of their threads reads the replies."""
        self.breaker.ask(in_flight.began)
        try:
            in_flight.send(in_flight.began + self._options.timeout)
        except FAULTS as error:
            self._break_off(in_flight, error)
            return
        except BaseException:
            self._connections.discard(in_flight.connection)
            in_flight.fail(StoreUnavailable("the call to Redis broke off"))
            raise
        with self._lock:  # so that no caller times out in between
            reader = next((call for call in in_flight.calls if call.is_waited_for and not call.is_done), None)
            if reader is not None:
                reader.in_flight = in_flight
        if reader is None:
            run_in_thread(self._read_late, in_flight)
        elif wakes:
            reader.wake()

    def _read(self, call: ThreadCall, in_flight: InFlight, until: float) -> None:
        """Read replies for all waiting threads. A thread that times out leaves the rest to another."""
        call.in_flight = None
        call.reset_notification()
        now = PROCESS.read()
        try:
            in_flight.read(now, until)
        except FAULTS as error:
            self._interrupt(call, in_flight, error)
        except BaseException:
            self._connections.discard(in_flight.connection)
            in_flight.fail(StoreUnavailable("the call to Redis broke off"))
            raise
        else:
            self._end(in_flight)

    def _interrupt(self, call: ThreadCall, in_flight: InFlight, error: Exception) -> None:
        """Handle a thread that stopped before it read all replies."""
        if isinstance(error, RedisTimeout):
            if PROCESS.read() < call.deadline:  # it waited only for a part of its time
                call.in_flight = in_flight
            else:
                self._listen(in_flight.began)
                run_in_thread(self._read_late, in_flight)
        else:
            self._break_off(in_flight, error)

    def _read_late(self, in_flight: InFlight) -> None:
        """Wait for late replies in a separate thread."""
        timeout = self._options.timeout
        try:
            try:
                in_flight.read(in_flight.began, in_flight.began + timeout)
            except RedisTimeout:
                self._listen(in_flight.began)
                in_flight.read(in_flight.began + timeout, in_flight.began + self._options.patience)
        except FAULTS as error:
            self._break_off(in_flight, error)
        else:
            self._end(in_flight)

    def _end(self, in_flight: InFlight) -> None:
        """Return the connection: all replies have arrived."""
        self.breaker.hear(PROCESS.now(in_flight.connection.used))
        if self._connections.give_back(in_flight.connection) and self._queue:
            self._serve()
        if self._observer is not None:
            seconds, timeout = in_flight.connection.used - in_flight.calls[0].began, self._options.timeout
            for call in in_flight.calls:
                report_call(self._observer, call.replies, seconds, call.groups, timeout)
        if self.breaker.state != "closed":
            self._may_wait(PROCESS.read())

    def _break_off(self, in_flight: InFlight, error: Exception) -> None:
        """Fail all calls of a connection that failed."""
        self._connections.discard(in_flight.connection)
        known = fault(error, self._options.timeout)
        if not isinstance(error, RedisTimeout):  # `_listen` handles that
            self._note_failure(in_flight.began, in_flight.calls[0].began, known)
        if self._observer is not None:
            for call in in_flight.calls:
                if not call.is_done:
                    self._observer.failed(known, monotonic() - call.began, call.groups)
        in_flight.fail(known)
        self._serve()

    def _give_up(self, call: ThreadCall) -> None:
        """Raise the timeout of a thread, unless something has just happened."""
        known = fault(TimeoutError(), self._options.timeout)
        if self._connections.opening_since is not None:
            self._listen(self._connections.opening_since)
        with self._lock:
            is_queued = call in self._queue
        if is_queued and call.groups and isinstance(known, StoreTimeout):
            known.charge_later = partial(self._charge_later, call)
        if self._abandon(call, known):
            if self._observer is not None:
                self._observer.failed(known, monotonic() - call.began, call.groups)
            raise known

    def _charge_later(self, call: ThreadCall) -> None:
        """Charge a check whose thread no longer waits."""
        owed = ThreadCall(call.commands, call.deadline, call.groups)
        owed.is_waited_for, owed.queued = False, PROCESS.read()
        with self._lock:
            if len(self._queue) >= MAX_CHARGED_LATER:
                return
            self._queue.append(owed)
        self._serve()

    def _abandon(self, call: ThreadCall, error: StoreError) -> bool:
        """End a call that no caller waits for. Return whether its outcome is unknown."""
        with self._lock:
            with suppress(ValueError):
                self._queue.remove(call)
            in_flight, is_done = call.in_flight, call.is_done
            if in_flight is None and not is_done:
                call.error = error
        if in_flight is not None and isinstance(error, StoreUnavailable):
            run_in_thread(self._read_late, in_flight)
        return in_flight is None and not is_done

    # Health

    def _may_wait(self, now: float) -> bool:
        """Start a probe if one is due. Return whether callers may wait for its answer."""
        if self.breaker.begin_probe(now):
            self._connections.open(self._on_connection)
        return self.breaker.may_wait(now)

    def _listen(self, began: float) -> None:
        """Open the breaker if nothing was heard since `began` for the whole timeout."""
        now, timeout = PROCESS.read(), self._options.timeout
        if self.breaker.state == "closed" and self.breaker.is_silent(now, began, timeout):
            self.breaker.open(now, str(fault(TimeoutError(), timeout)))
            self._connections.doubt(monotonic() - timeout)
            self._turn_away(now)

    def _note_failure(self, began: float, since: float, known: StoreError) -> None:
        """Report a failure to the breaker. If it is new evidence, suspect other connections too."""
        now = PROCESS.read()
        if self.breaker.fail(now, began, str(known)):
            self._connections.doubt(since)
        if self.breaker.state != "closed":
            self._turn_away(now)

    def _turn_away(self, now: float) -> None:
        """Refuse queued calls, unless they may wait for a probe."""
        if not self._may_wait(now):
            self._refuse_queue(circuit_open_error(self.name, self.breaker.why))

    def _refuse_queue(self, error: StoreError) -> None:
        with suppress(IndexError):
            while True:
                call = self._queue.popleft()
                if self._observer is not None and call.is_waited_for and not call.is_done:
                    self._observer.failed(error, monotonic() - call.began, call.groups)
                call.fail(error)

    def _on_connection(self, opened: ThreadConnection | Exception) -> None:
        """Take a new connection into use, or handle the error if it could not be opened."""
        if isinstance(opened, Exception):
            self._refuse_opening(opened)
            return
        now = PROCESS.read()
        if self._connections.open_count == 1:  # just this one: no queued call was in progress before
            with self._lock:
                for call in tuple(self._queue):
                    call.deadline, call.queued = max(call.deadline, now + self._options.timeout), now
        self.breaker.hear(now)
        if self.breaker.state != "closed":
            self.breaker.close(now)
        self._connections.opening_since = None
        if self._connections.give_back(opened) and self._queue:
            self._serve()

    def _refuse_opening(self, error: Exception) -> None:
        """Handle the failure to open a connection."""
        known = fault(error, self._options.timeout, sent=False)
        self._connections.enough_until = monotonic() + self._options.probe_every
        self._note_failure(float("inf"), monotonic(), known)
        if self.breaker.state == "closed" and not self._connections.open_count:
            self._refuse_queue(known)
