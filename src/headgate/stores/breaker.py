"""A circuit breaker: when to stop calling a server that is down, and when to try it again. Pure; no I/O.

closed      every call is sent
open        no call is sent; a probe is due as soon as it opens, and then every `probe_every` seconds
half-open   a probe is in progress, on its own connection that carries no calls

It opens on evidence that the server is down, and never because a caller's deadline passed:
- for as long as a caller waits, a call or a connection was in progress, and nothing was heard from the server;
- `FAILURES` calls or connections in a row were refused or broken off.
A probe that is answered closes it. Every reply, even a late one, is a sign of life and allows a probe at once. For
`GRACE_SECONDS` after the last sign of life, callers wait for the probe's answer; later, they fail at once.

`now` is the time of a process clock: time in which this process did not run is not evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final, Literal

State = Literal["closed", "half_open", "open"]

FAILURES: Final = 3
SILENCE: Final = 0.9  # of the timeout: a caller's wait starts when it arrives, but a call's when it is sent
GRACE_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 1.0


class Breaker:
    """The breaker of one server. Any thread may call.

    `changed` is called with the new state and the one before. It must not call back.
    """

    __slots__ = (
        "_changed",
        "_closed_at",
        "_failures",
        "_heard",
        "_lock",
        "_next_probe",
        "_probe_every",
        "state",
        "why",
    )

    def __init__(self, changed: Callable[[State, State], None], *, probe_every: float = PROBE_SECONDS) -> None:
        self.state: State = "closed"
        self.why = ""  # why it opened
        self._changed = changed
        self._probe_every = probe_every
        self._lock = Lock()
        self._failures = 0  # in a row
        self._heard: float | None = None  # time of the server's last sign of life; None: it was never called
        self._next_probe = self._closed_at = float("-inf")

    def ask(self, now: float) -> None:
        """Record a call to the server. The first call counts as a sign of life."""
        if self._heard is None:
            self._heard = now

    def hear(self, now: float) -> None:
        """Record a sign of life: any reply, even a late one or an error."""
        self._heard = now
        if self._failures or self.state != "closed":
            with self._lock:
                self._failures = 0
                self._next_probe = now

    def fail(self, now: float, began: float, why: str) -> bool:
        """Record that a call or connection from `began` was refused or broken off. Return whether this is new evidence.

        Calls that began before the breaker closed say nothing about the server since then.
        """
        with self._lock:
            if self._is_closed() and began < self._closed_at:
                return False
            self._failures += 1
            if self.state != "closed" or self._failures >= FAILURES:
                self._open(now, why)
            return True

    def is_silent(self, now: float, began: float, timeout: float) -> bool:
        """Return whether nothing was heard for as long as a caller waits, with a call in progress since `began`."""
        heard = began if self._heard is None else max(began, self._heard)
        return now - heard >= SILENCE * timeout

    def open(self, now: float, why: str) -> None:
        """Open the breaker: the server is silent."""
        with self._lock:
            if self.state == "closed":
                self._open(now, why)

    def begin_probe(self, now: float) -> bool:
        """Return whether a probe is due. If so, it has begun: end it with `close` or `fail`."""
        with self._lock:
            if self.state != "open" or now < self._next_probe:
                return False
            self._next_probe = now + self._probe_every
            self._become("half_open")
            return True

    def may_wait(self, now: float) -> bool:
        """Return whether a caller may wait for the answer of the probe in progress."""
        return self.state == "half_open" and now < self.grace_ends

    @property
    def grace_ends(self) -> float:
        """The time until which callers may wait for the answer of a probe."""
        return float("-inf") if self._heard is None else self._heard + GRACE_SECONDS

    def close(self, now: float) -> None:
        """Close the breaker: the probe was answered."""
        with self._lock:
            self._heard = self._closed_at = now
            self._failures, self.why = 0, ""
            self._become("closed")

    def reset_after_fork(self) -> None:
        """Reset in a forked child, where no thread holds the lock and no probe is in progress."""
        self._lock = Lock()
        if self.state == "half_open":
            self.state, self._next_probe = "open", float("-inf")

    def _is_closed(self) -> bool:
        return self.state == "closed"

    def _open(self, now: float, why: str) -> None:
        self.why = why
        if self.state == "closed":
            self._next_probe = now
        self._become("open")

    def _become(self, state: State) -> None:
        if state != self.state:
            before, self.state = self.state, state
            self._changed(state, before)
