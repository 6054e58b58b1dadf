"""Wait until a request may pass."""

from __future__ import annotations

from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.errors import InvalidCheck


class Wait:
    """The sleeps between the attempts of `wait`."""

    def __init__(self, clock: Clock, timeout: float | None) -> None:
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0
        ):
            raise InvalidCheck(f"timeout: must be 0 or more seconds, or None, got {timeout!r}")
        self._clock = clock
        self._deadline_us: int | None = None
        if timeout is not None and timeout != float("inf"):
            self._deadline_us = clock.now_us() + round(timeout * 1_000_000)

    def seconds(self, decision: Decision) -> float | None:
        """Return the seconds until the next attempt; None if the decision is final or the timeout comes first."""
        if decision.allowed or decision.retry_after is None:
            return None
        seconds = decision.retry_after
        if self._deadline_us is not None:
            left_us = self._deadline_us - self._clock.now_us()
            if round(seconds * 1_000_000) > left_us:
                return None
        return seconds
