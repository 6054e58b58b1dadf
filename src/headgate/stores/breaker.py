"""A circuit breaker: when to leave a server alone that costs its callers time, and when to try it again. Pure; no I/O.

closed      every call goes out
open        none does, but for a probe: at once when it opens, and then one every `probe_every` seconds at most
half-open   a probe is under way

It opens
- when a call fails that made its caller wait (`SLOW` of the deadline or more): the next would wait as long;
- when `FAILURES` calls in a row fail quickly: nothing listens, or what does is no use;
- when `SLOW_ANSWERS` of the last `ANSWERS` were slow.
Whatever is answered in good time closes it, be it to a probe or to a call that was still under way. A call that began
before, and fails after that, says nothing new: its connection was from before, too.

An error reply is an answer: whoever gives one does not keep anybody waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final, Literal

State = Literal["closed", "half_open", "open"]

SLOW: Final = 0.8  # of the deadline
FAILURES: Final = 3
ANSWERS: Final = 16
SLOW_ANSWERS: Final = 8
PROBE_SECONDS: Final = 1.0


class Breaker:
    """Of one server. `now` is monotonic, in seconds. Any thread may call.

    `changed` is told of every new state, and of the one before; it must not call back.
    """

    __slots__ = (
        "_changed",
        "_closed_at",
        "_failures",
        "_lock",
        "_next_probe",
        "_probe_every",
        "_recent",
        "_slow",
        "state",
        "why",
    )

    def __init__(
        self, deadline: float, changed: Callable[[State, State], None], *, probe_every: float = PROBE_SECONDS
    ) -> None:
        self.state: State = "closed"
        self.why = ""  # it is not closed: what the last failure was; empty: it is slow
        self._changed = changed
        self._slow = SLOW * deadline
        self._probe_every = probe_every
        self._lock = Lock()
        self._failures = 0  # in a row
        self._recent = 0  # a bit for each of the last answers, set if it was slow
        self._next_probe = self._closed_at = float("-inf")

    def admits(self, now: float) -> bool:
        """Whether a call may go out now. If it does while the breaker is not closed, it is the probe."""
        if self._is_closed():
            return True
        with self._lock:
            if self._is_closed():
                return True
            if now < self._next_probe:
                return False
            self._next_probe = now + self._probe_every
            self._become("half_open")
            return True

    def answered(self, now: float, seconds: float) -> None:
        """A call was answered; it took so long."""
        slow = seconds >= self._slow
        if not (slow or self._recent or self._failures) and self.state == "closed":
            return  # nearly always
        with self._lock:
            self._failures = 0
            if self.state != "closed":
                if slow:
                    self._open(now)
                else:
                    self._recent, self.why = 0, ""
                    self._closed_at = now
                    self._become("closed")
                return
            self._recent = (self._recent << 1 | slow) & (1 << ANSWERS) - 1
            if self._recent.bit_count() >= SLOW_ANSWERS:
                self._open(now)

    def failed(self, now: float, seconds: float, why: str = "") -> bool:
        """A call failed: there was no answer, after so long, or no connection. Whether that is news."""
        with self._lock:
            if self._is_closed() and now - seconds < self._closed_at:
                return False
            self._failures += 1
            self.why = why
            if self.state != "closed" or seconds >= self._slow or self._failures >= FAILURES:
                self._open(now)
            return True

    def forked(self) -> None:
        """In a forked child: whoever held the lock is not here."""
        self._lock = Lock()

    def _is_closed(self) -> bool:
        return self.state == "closed"

    def _open(self, now: float) -> None:
        self._recent = 0
        self._next_probe = max(self._next_probe, now)
        self._become("open")

    def _become(self, state: State) -> None:
        if state != self.state:
            before, self.state = self.state, state
            self._changed(state, before)
