"""The hook `on_refused` of a limiter. It gets each refusal and the request's facts."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from headgate.core.decision import Decision
from headgate.errors import InvalidRule

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
