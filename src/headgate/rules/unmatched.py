"""Requests to which no rule applies, although there are rules: whether they pass, and how they are logged."""

from __future__ import annotations

import logging
from typing import Final, Literal

from headgate.rules.plan import Facts, RulePlan

MAX_SHAPES: Final = 256  # shapes to log, each once

log = logging.getLogger("headgate")


class UnmatchedRequests:
    """Plans requests to which no rule applies, and logs each of their shapes once, even if the rules change.

    `previous` belongs to the rules before, if there were any.
    """

    def __init__(self, unmatched: Literal["allow", "refuse"], previous: UnmatchedRequests | None = None) -> None:
        self._refuses = unmatched == "refuse"
        self.is_silent = False  # disables the log
        self._logged: set[tuple[object, ...]] = set() if previous is None else previous._logged

    def plan(self, shape: tuple[object, ...]) -> RulePlan:
        """Return the plan of requests of this shape. It logs the first of them that is decided."""
        notice = None if self.is_silent else lambda facts: self._log(shape, facts)
        return RulePlan((), "no_rule", refuses=self._refuses, notice=notice)

    def _log(self, shape: tuple[object, ...], facts: Facts) -> None:
        shape = (self._refuses, *shape)
        if shape in self._logged or len(self._logged) >= MAX_SHAPES:
            return
        self._logged.add(shape)
        shown = {name: facts[name][:100] for name in ("method", "endpoint", "route", "tier") if name in facts}
        log.warning(
            "no rule applies to requests with the facts %s%s: they are %s",
            ", ".join(sorted(facts)) or "(none)",
            f" (such as {shown})" if shown else "",
            'refused, as unmatched = "refuse"' if self._refuses else "allowed, and not limited",
        )
