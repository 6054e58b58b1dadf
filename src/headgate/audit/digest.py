"""Makes batches of recorded events: assigns ids, masks credentials, and counts by subject."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from headgate.audit.buffer import CLIENT, OTHER, FlushWindow
from headgate.db.events import Count, Event, EventBatch, kept_text
from headgate.db.usage import UsageCount
from headgate.masking import MASK, is_secret_name, masked

Subject = tuple[int, str, str, str, str]  # the fields that identify a Count


_TEXTS: Final = ("user", "ip", "tenant", "endpoint", "tier")  # an event's fields that clients control
_MAX_MASKED: Final = 10_000  # cached texts
_masked = lru_cache(_MAX_MASKED)(masked)


def _masked_subject(dimension: str, subject: str) -> str:
    """Return a subject without credentials. API keys are already hashed."""
    if any(is_secret_name(fact) for fact in dimension.split("+") if fact != "api_key"):
        return MASK
    return _masked(subject)


class Digest:
    """Numbers the batches of one run and their events. For one thread at a time.

    A run counts at most `subjects` subjects a minute, so that a flood of new ones does not fill the database; the rest
    of each rule and dimension is counted together.
    """

    def __init__(self, run: str, subjects: int) -> None:
        self._run = run
        self._subjects = subjects
        self._batches = 0
        self._events = 0
        self._minute_us = 0
        self._seen: set[Subject] = set()  # in this minute

    def batch(self, window: FlushWindow, usage: Sequence[UsageCount] = ()) -> EventBatch:
        """Return the next batch."""
        self._batches += 1
        return EventBatch(self._batches, [self._number(event) for event in window.rows], self._counts(window), usage)

    def _number(self, event: Event) -> Event:
        """Assign an id to an event unless it has its decision's, and mask what looks like a credential."""
        name = event.id
        if not name:
            self._events += 1
            name = f"{self._run}{self._events:010x}"
        texts: Any = {name: _masked(value) for name in _TEXTS if (value := getattr(event, name)) is not None}
        return event._replace(
            id=name,
            facts={name: MASK if is_secret_name(name) else _masked(value) for name, value in event.facts.items()},
            subject=_masked_subject(event.dimension, event.subject),
            **texts,
        )

    def _counts(self, window: FlushWindow) -> list[Count]:
        counts: dict[Subject, list[int]] = {}
        own: set[tuple[str, str]] = set()  # rules and their dimensions
        for client, (events, cost) in window.tallies.items():
            minute_us, rule, reason, dimension, subject, *names = client
            self._begin(minute_us)
            own.add((rule, dimension))
            keys = [(minute_us, rule, reason, "", ""), self._count_key((minute_us, rule, reason, dimension, subject))]
            keys += [
                self._count_key((minute_us, rule, reason, fact, name))
                for fact, name in zip(CLIENT, names, strict=True)
                if name is not None and fact != dimension
            ]
            for key in keys:
                tally = counts.get(key)
                if tally is None:
                    tally = counts[key] = [0, 0]
                tally[0] += events
                tally[1] += cost
        return [
            Count(
                minute_us=minute_us,
                rule=kept_text(rule),
                reason=reason,
                dimension=kept_text(dimension),
                subject=kept_text(_masked_subject(dimension, subject)),
                own=(rule, dimension) in own,
                events=events,
                cost=cost,
            )
            for (minute_us, rule, reason, dimension, subject), (events, cost) in counts.items()
        ]

    def _begin(self, minute_us: int) -> None:
        if minute_us != self._minute_us:
            self._minute_us = minute_us
            self._seen.clear()

    def _count_key(self, key: Subject) -> Subject:
        """Return the name to count a subject under: its own, unless there are too many."""
        if key in self._seen or key[4] in ("", OTHER):
            return key
        if len(self._seen) >= self._subjects:
            return (*key[:4], OTHER)
        self._seen.add(key)
        return key
