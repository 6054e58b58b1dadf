"""Events in the database: write each once, in batches; query them; and delete old ones.

`headgate.audit` writes them. Each event is a row, except that a flood of events is sampled. The counts per minute
include every event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from sqlalchemy import Select, Table, case, delete, func, literal, literal_column, select, tuple_, update

from headgate.db import schema
from headgate.db.connection import LARGE_SECONDS, Database
from headgate.db.upsert import add_rows
from headgate.db.usage import FIGURES, UsageCount, usage_rows

MINUTE_US: Final = 60_000_000
ANNOTATE: Final = "annotate"  # the reason of events of rules that let requests pass, and mark them
PASSED: Final = ("shadow", ANNOTATE)  # the reasons of events of requests that passed
MAX_TEXT: Final = 512  # characters that are kept of one text: a row fits into PostgreSQL's indexes, whatever it holds


class Event(NamedTuple):
    """One request that was refused, or that passed although a rule that does not enforce is over its limit."""

    id: str
    at_us: int  # the store's time
    node: str
    rule: str
    reason: str
    allowed: bool  # it passed: the rule is a shadow, or annotates
    dimension: str  # the rule's
    subject: str  # whose limit it was
    user: str | None
    ip: str | None
    api_key: str | None
    tenant: str | None
    endpoint: str | None
    method: str | None
    tier: str | None
    facts: dict[str, str]  # the others
    cost: int
    limit: int
    remaining: int
    retry_after_us: int | None  # None: never
    weight: int  # how many events it stands for


class Count(NamedTuple):
    """How many events there were in a minute."""

    minute_us: int
    rule: str
    reason: str
    dimension: str  # what the subject is; empty: all subjects
    subject: str
    own: bool  # whether it is the rule's dimension
    events: int
    cost: int


class EventBatch(NamedTuple):
    """Events and counts to write at once. `number` grows with each batch of a run."""

    number: int
    events: Sequence[Event]
    counts: Sequence[Count]
    usage: Sequence[UsageCount] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events: those that have all of this. None: any. From `since_us`, until before `until_us`."""

    rule: str | None = None
    user: str | None = None
    ip: str | None = None
    api_key: str | None = None
    tenant: str | None = None
    endpoint: str | None = None
    reason: str | None = None
    shadow: bool | None = None  # True: what passed; False: what was refused
    since_us: int | None = None
    until_us: int | None = None


class Cursor(NamedTuple):
    """The last event of a page: where to go on."""

    at_us: int
    id: str


class Top(NamedTuple):
    """How often a subject has hit a rule in a period."""

    rule: str
    dimension: str
    subject: str
    refused: int
    shadow: int  # how often it passed although over the limit
    cost: int
    first_us: int  # the minute of its first event
    last_us: int  # and of its last

    @property
    def events(self) -> int:
        return self.refused + self.shadow


class Refusals(NamedTuple):
    """How often a subject was refused in a step of time, and how often it passed although over a limit."""

    at_us: int  # when the step began
    refused: int
    shadow: int


class Events:
    """Reads and writes events. Safe to share between threads; every method raises `DatabaseError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, run: str, batches: Sequence[EventBatch], at_us: int) -> int:
        """Write batches of a run, in order: all of them or nothing. Returns how many were not there yet.

        A batch is written once, however often it is given.
        """
        runs = schema.event_runs
        with self._database.write(seconds=LARGE_SECONDS) as connection:
            # A row that can be locked, so that a second writer of the same run waits and then sees what was written.
            add_rows(connection, runs, [{"id": run, "batch": 0, "at_us": at_us}])
            last = connection.scalars(select(runs.c.batch).where(runs.c.id == run).with_for_update()).one()
            new = [batch for batch in batches if batch.number > last]
            if not new:
                return 0
            add_rows(connection, schema.events, [event._asdict() for batch in new for event in batch.events])
            counts = _merge_counts(count for batch in new for count in batch.counts)
            add_rows(connection, schema.event_counts, counts, figures=("events", "cost"))
            usage = usage_rows(count for batch in new for count in batch.usage)
            add_rows(connection, schema.usage, usage, figures=FIGURES)
            connection.execute(update(runs).where(runs.c.id == run).values(batch=new[-1].number, at_us=at_us))
            return len(new)

    def page(self, wanted: EventFilter, *, after: Cursor | None = None, most: int = 100) -> list[Event]:
        """Events, the latest first; for the next page, give the last one's time and id as `after`."""
        table = schema.events
        query = select(*(table.c[name] for name in Event._fields)).order_by(table.c.at_us.desc(), table.c.id.desc())
        query = _add_filter(query, wanted).limit(most)
        if after is not None:
            query = query.where(tuple_(table.c.at_us, table.c.id) < tuple_(literal(after.at_us), literal(after.id)))
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            return [Event(*row) for row in connection.execute(query)]

    def get(self, event_id: str) -> Event | None:
        """One event: a refusal has the id of its decision."""
        table = schema.events
        query = select(*(table.c[name] for name in Event._fields)).where(table.c.id == kept_text(event_id))
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else Event(*row)

    def top(
        self,
        *,
        by: str | None = None,
        rule: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        most: int = 20,
    ) -> list[Top]:
        """Return the subjects with the most events by rule, in the minutes that overlap the period.

        `by` is their dimension: `user`, `ip`, `api_key`, `tenant`, or a dimension of some rule. Empty: all
        requests together. None: each rule's own dimension.
        """
        table = schema.event_counts
        shadow = func.sum(case((table.c.reason.in_(PASSED), table.c.events), else_=0))
        events = func.sum(table.c.events)
        who = (table.c.rule, table.c.dimension, table.c.subject)
        query = (
            select(
                *who, events, shadow, func.sum(table.c.cost), func.min(table.c.minute_us), func.max(table.c.minute_us)
            )
            .group_by(*who)
            .order_by(events.desc(), *who)
            .limit(most)
        )
        query = query.where(table.c.own if by is None else table.c.dimension == kept_text(by))
        if rule is not None:
            query = query.where(table.c.rule == kept_text(rule))
        if since_us is not None:
            query = query.where(table.c.minute_us >= since_us - since_us % MINUTE_US)
        if until_us is not None:
            query = query.where(table.c.minute_us < until_us)
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            return [
                Top(rule, dimension, subject, int(events - shadow), int(shadow), int(cost), first_us, last_us)
                for rule, dimension, subject, events, shadow, cost, first_us, last_us in connection.execute(query)
            ]

    def refusals(self, dimension: str, subject: str, *, since_us: int, until_us: int, step: int) -> list[Refusals]:
        """Of one subject, the steps of so many seconds that had events, in order of time."""
        table = schema.event_counts
        # As text, so that PostgreSQL knows it for the same expression wherever it stands.
        begin = table.c.minute_us - table.c.minute_us % literal_column(str(step * 1_000_000))
        shadow = func.sum(case((table.c.reason.in_(PASSED), table.c.events), else_=0))
        query = (
            select(begin, func.sum(table.c.events) - shadow, shadow)
            .where(table.c.dimension == kept_text(dimension), table.c.subject == kept_text(subject))
            .where(table.c.minute_us >= since_us - since_us % MINUTE_US, table.c.minute_us < until_us)
            .group_by(begin)
            .order_by(begin)
        )
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            return [Refusals(*map(int, row)) for row in connection.execute(query)]

    def forget(self, before_us: int, *, most: int = 1_000) -> int:
        """Delete up to `most` rows older than `before_us`. Returns how many; 0: there are none left.

        A step is short, so other transactions do not wait long for it. It skips rows that another node is deleting.
        """
        for table, time in (
            (schema.events, schema.events.c.at_us),
            (schema.event_counts, schema.event_counts.c.minute_us),
            (schema.event_runs, schema.event_runs.c.at_us),
        ):
            gone = self._delete(select(table.c.id).where(time < before_us).order_by(time), table, most)
            if gone:
                return gone
        return 0

    def forget_usage(self, step: int, before_us: int, *, most: int = 1_000) -> int:
        """Delete some usage of older steps of so many seconds, as `forget` does."""
        table = schema.usage
        old = select(table.c.id).where(table.c.step == step, table.c.at_us < before_us).order_by(table.c.at_us)
        return self._delete(old, table, most)

    def _delete(self, old: Select[Any], table: Table, most: int) -> int:
        chosen = old.limit(most).with_for_update(skip_locked=True)
        with self._database.write(seconds=LARGE_SECONDS) as connection:
            return connection.execute(delete(table).where(table.c.id.in_(chosen))).rowcount


def kept_text(text: str) -> str:
    """A text as it is kept: what databases cannot keep is replaced, and one that is too long ends in a hash."""
    if len(text) > MAX_TEXT:
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        text = f"{text[: MAX_TEXT - 33]}#{digest}"
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _merge_counts(counts: Iterable[Count]) -> list[dict[str, Any]]:
    """Rows of counts, those of the same subject and minute together, and in an order that all nodes write them in:
    else two of them could wait for each other."""
    rows: dict[str, dict[str, Any]] = {}
    for count in counts:
        key = "\0".join((str(count.minute_us), count.rule, count.reason, count.dimension, count.subject))
        name = blake2b(key.encode(), digest_size=16).hexdigest()
        row = rows.get(name)
        if row is None:
            rows[name] = {"id": name, **count._asdict()}
        else:
            row["events"] += count.events
            row["cost"] += count.cost
    return [rows[name] for name in sorted(rows)]


def _add_filter(query: Select[Any], wanted: EventFilter) -> Select[Any]:
    table = schema.events
    for name in ("rule", "user", "ip", "api_key", "tenant", "endpoint", "reason"):
        value = getattr(wanted, name)
        if value is not None:
            query = query.where(table.c[name] == kept_text(value))
    if wanted.shadow is not None:
        query = query.where(table.c.allowed == wanted.shadow)
    if wanted.since_us is not None:
        query = query.where(table.c.at_us >= wanted.since_us)
    if wanted.until_us is not None:
        query = query.where(table.c.at_us < wanted.until_us)
    return query
