"""Events in the database: written in batches, each once; asked for; and forgotten when they are old.

`headgate.audit` writes them. An event is kept as a row unless a flood of them is sampled; the counts per minute know
every one of them.
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
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from headgate.db import schema
from headgate.db.connection import LARGE_SECONDS, Database

MINUTE_US: Final = 60_000_000
MAX_TEXT: Final = 512  # characters that are kept of one text: a row fits into PostgreSQL's indexes, whatever it holds


class Event(NamedTuple):
    """One request that was refused, or that a shadow would have refused."""

    id: str
    at_us: int  # the store's time
    node: str
    rule: str
    reason: str
    allowed: bool  # it was a shadow's
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
    dimension: str  # what the subject is; empty: everybody
    subject: str
    own: bool  # whether it is the rule's dimension
    events: int
    cost: int


class Batch(NamedTuple):
    """What is written at once. `number` grows with each batch of a run."""

    number: int
    events: Sequence[Event]
    counts: Sequence[Count]


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
    shadow: bool | None = None
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
    shadow: int  # how often only a shadow would have refused it
    cost: int
    first_us: int  # the minute of its first event
    last_us: int  # and of its last

    @property
    def events(self) -> int:
        return self.refused + self.shadow


class Events:
    """Reads and writes events. Safe to share between threads; every method raises `DatabaseError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, run: str, batches: Sequence[Batch], at_us: int) -> int:
        """Write batches of a run, in order: all of them or nothing. Returns how many were not there yet.

        A batch is written once, however often it is given.
        """
        runs = schema.event_runs
        with self._database.write(seconds=LARGE_SECONDS) as connection:
            # A row that can be locked, so that a second writer of the same run waits and then sees what was written.
            self._add(connection, runs, [{"id": run, "batch": 0, "at_us": at_us}])
            last = connection.scalars(select(runs.c.batch).where(runs.c.id == run).with_for_update()).one()
            new = [batch for batch in batches if batch.number > last]
            if not new:
                return 0
            self._add(connection, schema.events, [event._asdict() for batch in new for event in batch.events])
            counts = _merged(count for batch in new for count in batch.counts)
            self._add(connection, schema.event_counts, counts, figures=("events", "cost"))
            connection.execute(update(runs).where(runs.c.id == run).values(batch=new[-1].number, at_us=at_us))
            return len(new)

    def page(self, wanted: EventFilter, *, after: Cursor | None = None, most: int = 100) -> list[Event]:
        """Events, the latest first; for the next page, give the last one's time and id as `after`."""
        table = schema.events
        query = select(*(table.c[name] for name in Event._fields)).order_by(table.c.at_us.desc(), table.c.id.desc())
        query = _filtered(query, wanted).limit(most)
        if after is not None:
            query = query.where(tuple_(table.c.at_us, table.c.id) < tuple_(literal(after.at_us), literal(after.id)))
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            return [Event(*row) for row in connection.execute(query)]

    def top(
        self,
        *,
        by: str | None = None,
        rule: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        most: int = 20,
    ) -> list[Top]:
        """Who has hit which rule most, in the minutes that have a part in the period.

        `by` says who: `user`, `ip`, `api_key`, `tenant`, or a dimension of some rule; empty: everybody together; None:
        the subjects of each rule's own dimension.
        """
        table = schema.event_counts
        shadow = func.sum(case((table.c.reason == "shadow", table.c.events), else_=0))
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

    def forget(self, before_us: int, *, most: int = 1_000) -> int:
        """Delete some of what is older, up to so many rows. Returns how many; 0: there are none left.

        A step is short, so that nobody waits long for it. Where another node is just deleting, it looks elsewhere.
        """
        for table, time in (
            (schema.events, schema.events.c.at_us),
            (schema.event_counts, schema.event_counts.c.minute_us),
            (schema.event_runs, schema.event_runs.c.at_us),
        ):
            old = select(table.c.id).where(time < before_us).order_by(time).limit(most)
            with self._database.write(seconds=LARGE_SECONDS) as connection:
                gone = _deleted(connection, table, old.with_for_update(skip_locked=True))
            if gone:
                return gone
        return 0

    def _add(
        self, connection: Connection, table: Table, rows: list[dict[str, Any]], figures: Sequence[str] = ()
    ) -> None:
        """Insert rows. Those whose id is there already only have their `figures` added."""
        if not rows:
            return
        if self._database.kind == "postgresql":
            adding: Any = postgresql.insert(table).from_select(list(rows[0]), _sent(table, list(rows[0])))
            values: Any = {"rows": rows}
        else:
            adding, values = sqlite.insert(table), rows
        if figures:
            sums = {name: table.c[name] + adding.excluded[name] for name in figures}
            adding = adding.on_conflict_do_update(index_elements=["id"], set_=sums)
        else:
            adding = adding.on_conflict_do_nothing()
        connection.execute(adding, values)


def _sent(table: Table, names: list[str]) -> Select[Any]:
    """The parameter `rows` as rows, in PostgreSQL: many are one statement and one parameter, which is far faster."""
    columns = (column(name, table.c[name].type) for name in names)
    rows = func.jsonb_to_recordset(bindparam("rows", type_=postgresql.JSONB)).table_valued(*columns, name="sent")
    sent = rows.render_derived(with_types=True)
    return select(*sent.c).order_by(sent.c.id)


def kept_text(text: str) -> str:
    """A text as it is kept: what databases cannot keep is replaced, and one that is too long ends in a hash."""
    if len(text) > MAX_TEXT:
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        text = f"{text[: MAX_TEXT - 33]}#{digest}"
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _merged(counts: Iterable[Count]) -> list[dict[str, Any]]:
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


def _filtered(query: Select[Any], wanted: EventFilter) -> Select[Any]:
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


def _deleted(connection: Connection, table: Table, old: Select[Any]) -> int:
    return connection.execute(delete(table).where(table.c.id.in_(old))).rowcount
