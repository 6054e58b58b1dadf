"""Makes batches of what was recorded: gives events their ids, and counts by subject."""

from __future__ import annotations

from headgate.audit.buffer import CLIENT, OTHER, Client, Window
from headgate.db.events import Batch, Count, Event, kept_text

Subject = tuple[int, str, str, str, str]  # the fields of a Count that tell it from others


class Digest:
    """Numbers the batches of one run, and their events. For one thread at a time.

    A run has at most so many `subjects` in a minute, so that a flood of ever new ones does not fill the database; the
    rest of each rule and dimension is counted together.
    """

    def __init__(self, run: str, subjects: int) -> None:
        self._run = run
        self._subjects = subjects
        self._batches = 0
        self._events = 0
        self._minute_us = 0
        self._seen: set[Subject] = set()  # in this minute

    def batch(self, window: Window) -> Batch:
        """The next batch."""
        self._batches += 1
        return Batch(self._batches, [self._numbered(event) for event in window.rows], self._counts(window))

    def _numbered(self, event: Event) -> Event:
        self._events += 1
        return event._replace(id=f"{self._run}{self._events:010x}")

    def _counts(self, window: Window) -> list[Count]:
        counts: dict[Subject, list[int]] = {}
        own: set[tuple[str, str]] = set()  # rules and their dimensions
        for client, (count, cost) in window.tallies.items():
            own.add((client.rule, client.dimension))
            for dimension, subject in _subjects(client):
                tally = counts.setdefault(self._admitted(client, dimension, subject), [0, 0])
                tally[0] += count
                tally[1] += cost
        return [
            Count(minute_us, kept_text(rule), reason, kept_text(dimension), subject, (rule, dimension) in own, *tally)
            for (minute_us, rule, reason, dimension, subject), tally in counts.items()
        ]

    def _admitted(self, client: Client, dimension: str, subject: str) -> Subject:
        """As whom to count a subject: as itself, unless there are too many."""
        if client.minute_us != self._minute_us:
            self._minute_us = client.minute_us
            self._seen.clear()
        key = (client.minute_us, client.rule, client.reason, dimension, kept_text(subject))
        if key in self._seen or subject in ("", OTHER):
            return key
        if len(self._seen) >= self._subjects:
            return (*key[:4], OTHER)
        self._seen.add(key)
        return key


def _subjects(client: Client) -> list[tuple[str, str]]:
    """Under which dimensions an event is counted: everybody, the rule's own, and what tells who the client is."""
    found = {"": "", client.dimension: client.subject}
    for name in CLIENT:
        value = getattr(client, name)
        if value is not None:
            found.setdefault(name, value)
    return list(found.items())
