"""Headgate: a distributed rate limiter.

    from headgate import Limiter

    limiter = Limiter("100/minute")
    if limiter.check("alice"):
        ...

Importing this, and using a limiter in memory, imports nothing but the standard library.
"""

from headgate._version import __version__
from headgate.core.decision import Decision, LimitStatus
from headgate.core.quota import Quota
from headgate.core.reservation import Settlement
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
