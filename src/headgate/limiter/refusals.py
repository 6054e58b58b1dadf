"""What follows a refusal: the hook `on_refused`, and the sleeps of `wait` until the request may pass."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from headgate.core.clock import Clock
from headgate.core.decision import Decision
from headgate.errors import InvalidCheck, InvalidRule

log = logging.getLogger("headgate")

OnRefused = Callable[[Decision, Mapping[str, Any]], object]


def checked_hook(hook: OnRefused | None, *, may_wait: bool) -> OnRefused | None:
    """Return a valid `on_refused` hook. Raises `InvalidRule` if the limiter cannot call it."""
    if hook is not None and not callable(hook):
        raise InvalidRule(f"on_refused: must be a function of a decision and facts, got {hook!r}")
    if inspect.iscoroutinefunction(hook) and not may_wait:
        raise InvalidRule(f"on_refused: must not be async for a Limiter, got {hook!r}")
    return hook


def call_hook(hook: OnRefused | None, decision: Decision, facts: Mapping[str, Any]) -> object:
    """Call the limiter's hook for refusals, and return its result.

    A hook that raises is logged; the request is still refused.
    """
    try:
        return None if hook is None else hook(decision, facts)
    except Exception:  # noqa: BLE001 - the app's hook: log whatever it raises
        log_raised(decision)
        return None


def log_raised(decision: Decision) -> None:
    """Log the exception that a hook raised."""
    log.exception("on_refused raised for rule %r; the request is still refused", decision.rule)


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
