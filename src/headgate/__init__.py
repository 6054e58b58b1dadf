"""Headgate: a distributed rate limiter.

    from headgate import Limiter

    limiter = Limiter("100/minute")
    if limiter.check("alice"):
        ...

Importing this, and using a limiter in memory, imports only the standard library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from headgate._version import __version__
from headgate.errors import (
    ChangeConflict,
    DatabaseError,
    DatabaseUnavailable,
    HeadgateError,
    IdempotencyConflict,
    InvalidCheck,
    InvalidQuota,
    InvalidRule,
    NotFound,
    RateLimited,
    StoreError,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from headgate.core.decision import Decision
    from headgate.core.quota import Quota
    from headgate.core.reservation import Settlement
    from headgate.core.verdict import LimitStatus
    from headgate.limiter.async_limiter import AsyncLimiter
    from headgate.limiter.async_reservations import AsyncReservation
    from headgate.limiter.async_slots import AsyncSlot
    from headgate.limiter.limiter import Limiter
    from headgate.limiter.reservations import Reservation
    from headgate.limiter.slots import Slot
    from headgate.rules.rule import Rule

__all__ = [
    "AsyncLimiter",
    "AsyncReservation",
    "AsyncSlot",
    "ChangeConflict",
    "DatabaseError",
    "DatabaseUnavailable",
    "Decision",
    "HeadgateError",
    "IdempotencyConflict",
    "InvalidCheck",
    "InvalidQuota",
    "InvalidRule",
    "LimitStatus",
    "Limiter",
    "NotFound",
    "Quota",
    "RateLimited",
    "Reservation",
    "Rule",
    "Settlement",
    "Slot",
    "StoreError",
    "StoreFull",
    "StoreTimeout",
    "StoreUnavailable",
    "__version__",
]

# The modules of the other names. Each is imported when its name is first used, so that programs load what they need.
_MODULES: Final = {
    "AsyncLimiter": "limiter.async_limiter",
    "AsyncReservation": "limiter.async_reservations",
    "AsyncSlot": "limiter.async_slots",
    "Decision": "core.decision",
    "LimitStatus": "core.verdict",
    "Limiter": "limiter.limiter",
    "Quota": "core.quota",
    "Reservation": "limiter.reservations",
    "Rule": "rules.rule",
    "Settlement": "core.reservation",
    "Slot": "limiter.slots",
}


if not TYPE_CHECKING:  # type checkers know all names

    def __getattr__(name: str) -> Any:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
