"""Events in the database: writes each once, in batches; queries them; and deletes old ones.

`headgate.audit` writes them. Each event is a row, except that a flood of events is sampled. The counts per minute
include every event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Connection,
    Select,
    Table,
    bindparam,
    case,
    column,
    delete,
    func,
    literal,
    literal_column,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from headgate.core.quota import MICROSECONDS
from headgate.db import schema
from headgate.db.connection import LARGE_SECONDS, Database
from headgate.db.records import time_text
from headgate.db.usage import FIGURES, UsageCount, usage_rows

MINUTE_US: Final = 60_000_000
ANNOTATE: Final = "annotate"  # the reason of events of annotating rules
PASSED: Final = ("shadow", ANNOTATE)  # the reasons of events of allowed requests
_SHADOW: Final = func.sum(  # the events of allowed requests
    case((schema.event_counts.c.reason.in_(PASSED), schema.event_counts.c.events), else_=0)
)
MAX_TEXT: Final = 512  # characters kept of one text, so that every row fits into PostgreSQL's indexes


class Event(NamedTuple):
    """A request that was refused, or that was allowed although over the limit of a rule that does not enforce."""

    id: str
    at_us: int  # the store's time
    node: str
    rule: str
    reason: str
    allowed: bool  # True: the rule is a shadow, or annotates
    dimension: str  # the rule's
    subject: str  # the subject that the rule counted
    user: str | None
    ip: str | None
    api_key: str | None
    tenant: str | None
    endpoint: str | None
    method: str | None
    tier: str | None
    facts: dict[str, str]  # the other facts
    cost: int
    limit: int
    remaining: int
    retry_after_us: int | None  # None: never
    weight: int  # the number of events that it represents

    def as_table(self) -> dict[str, Any]:
        """Return the event as the API and webhooks show it: with `at`, and with `retry_after` in seconds."""
        table = self._asdict()
        at_us, wait_us = table.pop("at_us"), table.pop("retry_after_us")
        return {**table, "at": time_text(at_us), "retry_after": None if wait_us is None else wait_us / MICROSECONDS}


class Count(NamedTuple):
    """The number of events of a subject in a minute."""

    minute_us: int
    rule: str
    reason: str
    dimension: str  # the subject's kind; empty: all subjects
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
    """A filter of events by these fields; None matches any. From `since_us` until before `until_us`."""

    rule: str | None = None
    user: str | None = None
    ip: str | None = None
    api_key: str | None = None
    tenant: str | None = None
    endpoint: str | None = None
    reason: str | None = None
    shadow: bool | None = None  # True: allowed requests; False: refused ones
    since_us: int | None = None
    until_us: int | None = None


class Cursor(NamedTuple):
    """The last event of a page, where the next one starts."""

    at_us: int
    id: str


class Top(NamedTuple):
    """How often a subject hit a rule in a period."""

    rule: str
    dimension: str
    subject: str
    refused: int
    shadow: int  # allowed although over the limit
    cost: int
    first_us: int  # the minute of its first event
    last_us: int  # … and of its last one

    @property
    def events(self) -> int:
        return self.refused + self.shadow


class Refusals(NamedTuple):
    """How often a subject was refused in a step of time, and how often it was allowed although over a limit."""

    at_us: int  # start of the step
    refused: int
    shadow: int


class Events:
    """Reads and writes events. Safe to share between threads; every method raises `DatabaseError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, run: str, batches: Sequence[EventBatch], at_us: int) -> int:
        """Write batches of a run in order: all of them or none. Returns how many were new.

        A batch is stored once, however often it is passed.
        """
        runs = schema.event_runs
        with self._database.write(seconds=LARGE_SECONDS) as connection:
            # A row to lock, so that a second writer of the same run waits, and then sees what was written.
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

    def page(self, wanted: EventFilter, *, after: Cursor | None = None, max_items: int = 100) -> list[Event]:
        """Return events, the latest first. For the next page, pass the last one's time and id as `after`."""
        table = schema.events
        query = select(*(table.c[name] for name in Event._fields)).order_by(table.c.at_us.desc(), table.c.id.desc())
        query = _add_filter(query, wanted).limit(max_items)
        if after is not None:
            query = query.where(tuple_(table.c.at_us, table.c.id) < tuple_(literal(after.at_us), literal(after.id)))
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            return [Event(*row) for row in connection.execute(query)]

    def get(self, event_id: str) -> Event | None:
        """Return one event; None if it does not exist. A refusal has the id of its decision."""
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
        max_items: int = 20,
    ) -> list[Top]:
        """Return the subjects with the most events by rule, in the minutes that overlap the period.

        `by` is their dimension: `user`, `ip`, `api_key`, `tenant`, or a dimension of some rule. Empty: all
        requests together. None: each rule's own dimension.
        """
        table, shadow = schema.event_counts, _SHADOW
        events = func.sum(table.c.events)
        who = (table.c.rule, table.c.dimension, table.c.subject)
        query = (
            select(
                *who, events, shadow, func.sum(table.c.cost), func.min(table.c.minute_us), func.max(table.c.minute_us)
            )
            .group_by(*who)
            .order_by(events.desc(), *who)
            .limit(max_items)
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
        """Return a subject's refusals in steps of `step` seconds, in order of time, without empty steps."""
        table, shadow = schema.event_counts, _SHADOW
        # A literal, so that PostgreSQL sees the same expression in all clauses.
        begin = table.c.minute_us - table.c.minute_us % literal_column(str(step * 1_000_000))
        query = (
            select(begin, func.sum(table.c.events) - shadow, shadow)
            .where(table.c.dimension == kept_text(dimension), table.c.subject == kept_text(subject))
            .where(table.c.minute_us >= since_us - since_us % MINUTE_US, table.c.minute_us < until_us)
            .group_by(begin)
            .order_by(begin)
        )
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            return [Refusals(*map(int, row)) for row in connection.execute(query)]

    def forget(self, before_us: int, *, max_items: int = 1_000) -> int:
        """Delete up to `max_items` rows older than `before_us`. Returns their number; 0 if none are left.

        A step is short, so other transactions do not wait long for it. It skips rows that another node is deleting.
        """
        for table, time in (
            (schema.events, schema.events.c.at_us),
            (schema.event_counts, schema.event_counts.c.minute_us),
            (schema.event_runs, schema.event_runs.c.at_us),
        ):
            gone = self._delete(select(table.c.id).where(time < before_us).order_by(time), table, max_items)
            if gone:
                return gone
        return 0

    def forget_usage(self, step: int, before_us: int, *, max_items: int = 1_000) -> int:
        """Delete some old usage in steps of `step` seconds, as `forget` does."""
        table = schema.usage
        old = select(table.c.id).where(table.c.step == step, table.c.at_us < before_us).order_by(table.c.at_us)
        return self._delete(old, table, max_items)

    def _delete(self, old: Select[Any], table: Table, max_items: int) -> int:
        chosen = old.limit(max_items).with_for_update(skip_locked=True)
        with self._database.write(seconds=LARGE_SECONDS) as connection:
            return connection.execute(delete(table).where(table.c.id.in_(chosen))).rowcount


def add_rows(connection: Connection, table: Table, rows: list[dict[str, Any]], figures: Sequence[str] = ()) -> None:
    """Insert rows. If an id exists, add the `figures` to its row."""
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        adding: Any = postgresql.insert(table).from_select(list(rows[0]), _rows_parameter(table, list(rows[0])))
        values: Any = {"rows": rows}
    else:
        adding, values = sqlite.insert(table), rows
    if figures:
        sums = {name: table.c[name] + adding.excluded[name] for name in figures}
        adding = adding.on_conflict_do_update(index_elements=["id"], set_=sums)
    else:
        adding = adding.on_conflict_do_nothing()
    connection.execute(adding, values)


def _rows_parameter(table: Table, names: list[str]) -> Select[Any]:
    """Return PostgreSQL's rows of the parameter `rows`. One parameter for all of them is far faster than one each."""
    columns = (column(name, table.c[name].type) for name in names)
    rows = func.jsonb_to_recordset(bindparam("rows", type_=postgresql.JSONB)).table_valued(*columns, name="sent")
    sent = rows.render_derived(with_types=True)
    return select(*sent.c).order_by(sent.c.id)


def kept_text(text: str) -> str:
    """Return a text as stored: unstorable characters are replaced, and a text that is too long ends in a hash."""
    if len(text) > MAX_TEXT:
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        text = f"{text[: MAX_TEXT - 33]}#{digest}"
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _merge_counts(counts: Iterable[Count]) -> list[dict[str, Any]]:
    """Return rows of counts, merged by subject and minute, in the order of all nodes: that avoids deadlocks."""
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
