"""The options of the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """How events are stored. All times are in seconds. Raises `ValueError`, which names the field and its value.

    A killed process loses the events that are not yet in the spool: at most `flush_seconds` of them. Sampling applies
    to the events between two flushes: for one client at one rule, the first `rows_per_client` become rows, then one in
    `one_in`; beyond `rows` in all, one in `one_in` of the rest. Counts are never sampled, but clients beyond `clients`
    between two flushes, and subjects beyond `subjects` in a minute, are counted together.
    """

    retention: float | None = 90 * 86_400.0  # how long events are kept; None: forever
    usage_retention: float | None = 30 * 86_400.0  # … usage by the minute
    usage_hourly_retention: float | None = 365 * 86_400.0  # … and by the hour
    flush_seconds: float = 0.1  # from memory to the spool
    write_seconds: float = 0.5  # from the spool to the database
    spool_bytes: int = 64 * 1024 * 1024  # beyond it, the oldest events are dropped
    rows_per_client: int = 5
    rows: int = 100
    one_in: int = 100
    clients: int = 2_000
    subjects: int = 10_000

    def __post_init__(self) -> None:
        for name in ("retention", "usage_retention", "usage_hourly_retention"):
            if getattr(self, name) is not None:
                self._number(name, 1)
        for name in ("flush_seconds", "write_seconds"):
            self._number(name, 0.001)
        self._whole("spool_bytes", 65_536)
        for name in ("rows_per_client", "rows", "one_in", "clients", "subjects"):
            self._whole(name, 1)

    def _number(self, name: str, least: float) -> None:
        value: Any = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise ValueError(f"{name}: must be a number of seconds, at least {least}, got {value!r}")

    def _whole(self, name: str, least: int) -> None:
        value: Any = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}: must be a whole number, at least {least}, got {value!r}")
