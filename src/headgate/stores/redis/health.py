"""Health of a server: its breaker, and the errors and events derived from it. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from headgate.errors import StoreUnavailable
from headgate.stores.breaker import Breaker, State
from headgate.stores.protocol import StoreObserver
from headgate.stores.redis.faults import fault, is_redirect
from headgate.stores.redis.options import RedisOptions

log = logging.getLogger("headgate.breaker")


def tell(observer: StoreObserver, replies: Sequence[Any], seconds: float, groups: int, timeout: float) -> None:
    """Report a call that was answered, possibly with errors."""
    for reply in replies:
        if isinstance(reply, Exception) and not is_redirect(reply):
            observer.failed(fault(reply, timeout), seconds, groups)
            return
    observer.called(seconds, groups)


def breaker_of(name: str, options: RedisOptions, observer: StoreObserver | None) -> Breaker:
    """Make the breaker of a server. It logs its changes, and reports them to `observer`."""

    def on_change(state: State, before: State) -> None:
        # While the server is down, the breaker alternates between open and half-open.
        level = logging.WARNING if "closed" in (state, before) else logging.DEBUG
        why = f" ({breaker.why})" if state == "open" else ""
        log.log(level, "Redis at %s: breaker %s%s", name, state.replace("_", "-"), why)
        if observer is not None:
            observer.breaker(name, state)

    breaker = Breaker(on_change, probe_every=options.probe_every)
    if observer is not None:
        observer.breaker(name, "closed")
    return breaker


def circuit_open_error(name: str, why: str) -> StoreUnavailable:
    """Return the error for callers that the open breaker rejects."""
    return StoreUnavailable(f"circuit open for Redis at {name}: {why}", sent=False)


def replaced_master_error(name: str) -> StoreUnavailable:
    """Return the error for callers that were about to be sent to a master that Sentinels no longer name."""
    return StoreUnavailable(f"Redis at {name} is no longer the master", sent=False)
