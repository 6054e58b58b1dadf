"""Requests that are alike: the same rules apply to all of them, at the same cost, and they differ in one subject alone.

Many of them are asked, and answered, as one list of subjects and one list of figures: what each by itself would be made
of is made for those alone that need it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from headgate.core.check import Check
from headgate.errors import StoreError


class Pattern(NamedTuple):
    """What such requests have in common: their checks, which are decided together, with what each really costs.

    Where `own` says so, a check has the request's own subject; else, the one that it says itself.
    """

    checks: tuple[Check, ...]
    own: tuple[bool, ...]  # of each check

    def of(self, subject: str) -> tuple[Check, ...]:
        """The checks of one request."""
        return tuple(
            check._replace(subject=subject) if own else check for check, own in zip(self.checks, self.own, strict=True)
        )


class Answers(NamedTuple):
    """What a store answers to such requests, in order."""

    now_us: int
    figures: Sequence[int]  # of each request, of each of its checks: wait, remaining and reset, as in an `Outcome`
    faults: Mapping[int, StoreError] = {}  # by place: requests that could not be decided. Their figures mean nothing


Alike = Callable[[Sequence[str]], Answers]  # of the subjects
AsyncAlike = Callable[[Sequence[str]], Awaitable[Answers]]
