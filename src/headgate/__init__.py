"""Headgate: a distributed rate limiter.

    from headgate import Limiter

    limiter = Limiter("100/minute")
    if limiter.check("alice"):
        ...

Importing this, and using a limiter in memory, imports only the standard library.
"""

from typing import TYPE_CHECKING, Final

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
    InvalidStore,
    NotFound,
    RateLimited,
    StoreError,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
)
from headgate.lazy_names import lazy_names

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
    "InvalidStore",
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
    "AsyncLimiter": "headgate.limiter.async_limiter",
    "AsyncReservation": "headgate.limiter.async_reservations",
    "AsyncSlot": "headgate.limiter.async_slots",
    "Decision": "headgate.core.decision",
    "LimitStatus": "headgate.core.verdict",
    "Limiter": "headgate.limiter.limiter",
    "Quota": "headgate.core.quota",
    "Reservation": "headgate.limiter.reservations",
    "Rule": "headgate.rules.rule",
    "Settlement": "headgate.core.reservation",
    "Slot": "headgate.limiter.slots",
}

if not TYPE_CHECKING:  # type checkers know all names
    __getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
