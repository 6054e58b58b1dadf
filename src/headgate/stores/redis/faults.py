"""What goes wrong between here and a Redis server, and whether it may be tried elsewhere. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

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
from headgate.tls_advice import advise

FAULTS: Final = (RedisError, OSError)

# Error replies that mean that nothing was executed.
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
_READ_ONLY: Final = "-READONLY"  # within what Redis 6.2 says of a script that met it at its first write
_FULL: Final = "OOM command not allowed"  # at the beginning of an error reply, or within what a script met
TRY_AGAIN_SECONDS: Final = 0.002
DOWN_SECONDS: Final = 0.02

Address = tuple[str, int]  # host and port
Owners = Sequence[tuple[int, Address]]  # so many slots, one after the other, and whose they are; one: all there is


def reply_error(message: str) -> Exception:
    """The exception that an error reply stands for, as redis-py has it."""
    code, _, text = message.partition(" ")
    kind = _REFUSALS.get(code)
    if kind is None:
        return ReadOnlyError(message) if _READ_ONLY in message else ResponseError(message)
    return kind(text)


def fault(error: Exception, timeout: float, *, sent: bool = True) -> StoreError:
    """What a failure of the connection or an error reply means to the limiter. `error` becomes its cause."""
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
    """Where a call goes that was not executed."""

    address: Address | None = None  # None: to the server of its slot
    asking: bool = False  # that server is about to take the slot over, and serves this once
    pause: float = 0.0  # seconds to wait before; each group then goes by itself, unless the cluster is down
    down: bool = False  # the whole cluster is, until a replica takes over: worth waiting for if that is recent
    look: bool = False  # others are to be asked who serves it
    wait: bool = False  # until they have answered, if they can be asked now


def find_redirect(error: StoreError, host: str) -> Redirect | None:
    """Return where to send what met `error` at `host` next; None: nowhere, or it may have been executed."""
    cause = error.__cause__
    if isinstance(cause, AskError):  # or MovedError, which derives from it: both name a server
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
    """Whether a reply is an error that says nothing of the server's health: the call goes elsewhere, or again."""
    return isinstance(reply, AskError | TryAgainError)
