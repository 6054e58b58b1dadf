"""Limits in state warning: they enter it at one percentage of use, and leave it at a lower one."""

from __future__ import annotations

from typing import Final

from headgate.core.reading import WARNING_PERCENT
from headgate.errors import InvalidRule, Problem
from headgate.rules import fields
from headgate.rules.holder import Holder
from headgate.rules.recent import Recent

NORMAL_PERCENT: Final = 70
REMEMBERED: Final = 16_384  # keys in warning, at least; at most twice as many

_percent = fields.optional(fields.whole(1, 100))


class WarningHysteresis:
    """The warnings that one limiter remembers. `at` and `until` apply if the snapshot in force sets no percentages."""

    __slots__ = ("_at", "_holder", "_known", "_until", "warned")

    def __init__(self, holder: Holder, at: int | None, until: int | None, size: int = REMEMBERED) -> None:
        problems = []
        for name, value in (("warning_at", at), ("warning_until", until)):
            try:
                _percent(value)
            except ValueError as error:
                problems.append(Problem("", name, str(error)))
        if not problems and at is not None and until is not None and until > at:
            problems.append(Problem("", "warning_until", f"must not be above warning_at ({at}), got {until}"))
        if problems:
            raise InvalidRule(*problems)
        self._holder = holder
        self._at = WARNING_PERCENT if at is None else at
        self._until = NORMAL_PERCENT if until is None else until
        self.warned = False  # whether any limit was ever in warning
        self._known: Recent[tuple[str, str], int] = Recent(size)  # when the whole limit is available again

    def percent(self) -> int:
        """Return the percentage of use from which a limit is in warning."""
        return self._holder.current.warning_at or self._at

    def warns(self, key_template: str, subject: str, used: int, limit: int, now_us: int, reset_us: int) -> bool:
        """Return whether the subject's limit is in warning when `used` of it is used. Remembers the answer."""
        snapshot = self._holder.current
        if used * 100 < limit * (snapshot.warning_at or self._at):
            if not self.warned:  # the common case
                return False
            until = snapshot.warning_until or self._until
            whole_us = self._known.get((key_template, subject))
            if whole_us is None:
                return False
            if used * 100 < limit * until or now_us >= whole_us:
                self._known.drop((key_template, subject))
                return False
        self.warned = True
        self._known.put((key_template, subject), now_us + reset_us)
        return True
