"""Faults between this process and a Redis server: the errors, whether a call may be retried elsewhere, and the breaker.

No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as RedisTimeout

from headgate.errors import StoreError, StoreFull, StoreTimeout, StoreUnavailable
from headgate.stores.breaker import Breaker, State
from headgate.stores.protocol import StoreObserver
from headgate.tls_advice import advise

FAULTS: Final = (RedisError, OSError)

# Error replies to commands that were not executed.
_REFUSALS: Final[dict[str, type[Exception]]] = {
    "NOSCRIPT": NoScriptError,
    "MOVED": MovedError,
    "ASK": AskError,
    "TRYAGAIN": TryAgainError,
    "READONLY": ReadOnlyError,
    "LOADING": BusyLoadingError,
    "CLUSTERDOWN": ClusterDownError,
    "MASTERDOWN": MasterDownError,
}
_NOT_EXECUTED: Final = tuple(_REFUSALS.values())
_READ_ONLY: Final = "-READONLY"  # inside the error of Redis 6.2 for a script that hit it at its first write
_FULL: Final = "OOM command not allowed"  # at the start of an error reply, or inside the error of a script
TRY_AGAIN_SECONDS: Final = 0.002
DOWN_SECONDS: Final = 0.02

log = logging.getLogger("headgate.breaker")

Address = tuple[str, int]  # host and port
Owners = Sequence[tuple[int, Address]]  # consecutive slots and their owner; a single entry: all slots


def reply_error(message: str) -> Exception:
    """Return the redis-py exception for an error reply."""
    code, _, text = message.partition(" ")
    kind = _REFUSALS.get(code)
    if kind is None:
        return ReadOnlyError(message) if _READ_ONLY in message else ResponseError(message)
    return kind(text)


def fault(error: Exception, timeout: float, *, sent: bool = True) -> StoreError:
    """Return the `StoreError` for a connection failure or an error reply. `error` becomes its cause."""
    known: StoreError
    if isinstance(error, ResponseError) and _READ_ONLY in str(error):
        error = ReadOnlyError(str(error))
    if isinstance(error, RedisTimeout | TimeoutError):
        known = StoreTimeout(f"Redis did not answer within {timeout * 1000:g} ms")
    elif isinstance(error, ResponseError) and _FULL in str(error):
        known = StoreFull(f"Redis has no memory left: {error}")
    else:
        known = StoreUnavailable(advise(f"Redis failed: {error}"), sent=sent and not isinstance(error, _NOT_EXECUTED))
    known.__cause__ = error
    return known


class Redirect(NamedTuple):
    """The next destination of a call that was not executed."""

    address: Address | None = None  # None: the server of its slot
    asking: bool = False  # that server is importing the slot, and serves it once
    pause: float = 0.0  # seconds to wait before; then each group goes separately, unless the cluster is down
    down: bool = False  # the whole cluster is down until a replica takes over: wait for it if the outage is recent
    look: bool = False  # request a discovery
    wait: bool = False  # wait for the discovery, if it can run now


def find_redirect(error: StoreError, host: str) -> Redirect | None:
    """Return where to send a call that failed with `error` at `host`; None: nowhere, or it may have been executed."""
    cause = error.__cause__
    if isinstance(cause, AskError):  # or MovedError, a subclass: both name a server
        asking = not isinstance(cause, MovedError)
        return Redirect((cause.host or host, cause.port), asking=asking, look=not asking)
    if isinstance(cause, TryAgainError):
        return Redirect(pause=TRY_AGAIN_SECONDS)
    if isinstance(cause, ClusterDownError):
        return Redirect(pause=DOWN_SECONDS, look=True, down=True)
    if isinstance(error, StoreUnavailable) and not error.sent:
        return Redirect(look=True, wait=cause is not None)  # without a cause, it was the breaker
    return None


def is_redirect(reply: object) -> bool:
    """Return whether a reply is an error unrelated to the server's health: the call is redirected or retried."""
    return isinstance(reply, AskError | TryAgainError)


def report_call(observer: StoreObserver, replies: Sequence[Any], seconds: float, groups: int, timeout: float) -> None:
    """Report a call that was answered, possibly with errors."""
    for reply in replies:
        if isinstance(reply, Exception) and not is_redirect(reply):
            observer.failed(fault(reply, timeout), seconds, groups)
            return
    observer.called(seconds, groups)


def breaker_of(name: str, probe_every: float, observer: StoreObserver | None) -> Breaker:
    """Make the breaker of a server. It logs its changes, and reports them to `observer`."""

    def on_change(state: State, before: State) -> None:
        # While the server is down, the breaker alternates between open and half-open.
        level = logging.WARNING if "closed" in (state, before) else logging.DEBUG
        why = f" ({breaker.why})" if state == "open" else ""
        log.log(level, "Redis at %s: breaker %s%s", name, state.replace("_", "-"), why)
        if observer is not None:
            observer.breaker(name, state)

    breaker = Breaker(on_change, probe_every=probe_every)
    if observer is not None:
        observer.breaker(name, "closed")
    return breaker


def circuit_open_error(name: str, why: str) -> StoreUnavailable:
    """Return the error for callers that the open breaker rejects."""
    return StoreUnavailable(f"circuit open for Redis at {name}: {why}", sent=False)


def replaced_master_error(name: str) -> StoreUnavailable:
    """Return the error for callers that were about to be sent to a master that Sentinels no longer name."""
    return StoreUnavailable(f"Redis at {name} is no longer the master", sent=False)
