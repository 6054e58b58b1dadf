"""Usage in the database: each rule's checks by minute and by hour.

`headgate.audit` writes it in the same batches as events, each once. An hour's row is written together with those of
its minutes, so that old minutes can be deleted while their hour stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from math import inf
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, func, literal_column, or_, select

from headgate.db import schema
from headgate.db.connection import LARGE_SECONDS, Database

MINUTE_SECONDS: Final = 60
HOUR_SECONDS: Final = 3_600
STEPS: Final = (MINUTE_SECONDS, HOUR_SECONDS)  # of stored rows
ALL: Final = ""  # all checks, each counted once, however many rules applied
OTHER: Final = "(other)"  # all rules that there was no room for
NO_RULE: Final = "(no rule)"  # checks that no rule applied to
BOUNDS_US: Final = schema.USAGE_BOUNDS_US
COUNTS: Final = schema.USAGE_COUNTS
TIMES: Final = schema.USAGE_TIMES
FIGURES: Final = (*COUNTS, *TIMES)  # the columns to sum


class UsageCount(NamedTuple):
    """A rule's counts in a minute, or a part of it. `figures` are in the order of `FIGURES`."""

    minute_us: int
    rule: str
    figures: Sequence[int]


class UsageStep(NamedTuple):
    """A rule's counts in a step of time. Times of a check are in microseconds; None if none was timed."""

    at_us: int  # when the step began
    rule: str
    allowed: int
    refused: int
    shadow: int  # allowed, but a shadow rule would have refused
    delayed: int  # allowed, but delayed
    failure_mode: int  # allowed or refused by a failure mode, because the store failed
    cost: int  # of allowed checks
    p50_us: float | None
    p99_us: float | None

    @property
    def checks(self) -> int:
        return self.allowed + self.refused + self.shadow


class Traffic(NamedTuple):
    """A rule's checks in a step of time, and how many of them it refused."""

    at_us: int  # when the step began
    rule: str
    checks: int
    refused: int


class UsageHistory:
    """Reads usage. Safe to share between threads; every method raises `DatabaseError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def series(self, rules: Collection[str], *, since_us: int, until_us: int, step: int) -> list[UsageStep]:
        """Return each rule's counts in steps of `step` seconds, in order of time, without empty steps.

        Reads minutes, or hours if the step is a multiple of an hour. `ALL` is all checks, each counted once.
        """
        begin, rule = _begin(step), schema.usage.c.rule
        query = _chosen(_sums(begin, rule), begin, rules, step, since_us, until_us)
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            return [_usage(*row) for row in connection.execute(query)]

    def traffic(self, rules: Collection[str], *, since_us: int, until_us: int, step: int) -> list[Traffic]:
        """Return each rule's number of checks in each step, as `series` does. Cheaper, for many rules."""
        begin, table = _begin(step), schema.usage.c
        sums = func.sum(table.allowed + table.refused + table.shadow), func.sum(table.refused)
        query = _chosen(select(begin, table.rule, *sums), begin, rules, step, since_us, until_us)
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            found = connection.execute(query)
            return [Traffic(at_us, rule, int(checks), int(refused)) for at_us, rule, checks, refused in found]

    def top(self, *, since_us: int, until_us: int, by: str = "refused", max_items: int = 10) -> list[UsageStep]:
        """Return the rules with the highest count in a period, with their counts in all of it."""
        table = schema.usage
        total = func.sum(table.c[by])
        ranking = (
            select(table.c.rule)
            .where(_within(since_us, until_us), table.c[by] > 0, table.c.rule.not_in((ALL, OTHER, NO_RULE)))
            .group_by(table.c.rule)
            .order_by(total.desc(), table.c.rule)
            .limit(max_items)
        )
        with self._database.read(seconds=LARGE_SECONDS) as connection:
            rules = list(connection.scalars(ranking))
            figures = _sums(func.min(table.c.at_us), table.c.rule).where(
                _within(since_us, until_us), table.c.rule.in_(rules)
            )
            found = {row[1]: _usage(*row) for row in connection.execute(figures.group_by(table.c.rule))}
        return [found[rule] for rule in rules]


def usage_rows(counts: Iterable[UsageCount]) -> list[dict[str, Any]]:
    """Return the counts' rows by minute and hour, in the order in which all nodes write them, to avoid deadlocks."""
    rows: dict[str, dict[str, Any]] = {}
    for minute_us, rule, figures in counts:
        for step in STEPS:
            at_us = minute_us - minute_us % (step * 1_000_000)
            name = blake2b(f"{step}\0{at_us}\0{rule}".encode(), digest_size=16).hexdigest()
            row = rows.get(name)
            if row is None:
                row = rows[name] = {"id": name, "step": step, "at_us": at_us, "rule": rule, **dict.fromkeys(FIGURES, 0)}
            for figure, value in zip(FIGURES, figures, strict=True):
                row[figure] += value
    return [rows[name] for name in sorted(rows)]


def quantile(times: Sequence[int], share: float) -> float | None:
    """Return the time that this share of checks did not exceed, from the bucket counts; None if there were no checks.

    Assumes that times are spread evenly within a bucket. Above all bounds, it is the last bound.
    """
    wanted = sum(times) * share
    if not wanted:
        return None
    below, low = 0, 0.0
    for count, high in zip(times, (*BOUNDS_US, inf), strict=True):
        if count and below + count >= wanted:
            return low if high == inf else low + (high - low) * (wanted - below) / count
        below, low = below + count, high
    return low


def _sums(begin: Any, rule: Any) -> Select[Any]:
    return select(begin, rule, *(func.sum(schema.usage.c[name]) for name in FIGURES))


def _begin(step: int) -> ColumnElement[int]:
    """Return the start of a row's step of `step` seconds."""
    # A literal, so that PostgreSQL sees the same expression in all clauses.
    at_us = schema.usage.c.at_us
    return at_us - at_us % literal_column(str(step * 1_000_000))


def _chosen(
    query: Select[Any], begin: ColumnElement[int], rules: Collection[str], step: int, since_us: int, until_us: int
) -> Select[Any]:
    """Restrict a query to these rules and to the steps that overlap the period, grouped by step and rule."""
    table = schema.usage
    kept = HOUR_SECONDS if step % HOUR_SECONDS == 0 else MINUTE_SECONDS
    first_us = since_us - since_us % (step * 1_000_000 if step in STEPS else kept * 1_000_000)
    return (
        query.where(table.c.step == kept, table.c.at_us >= first_us, table.c.at_us < until_us)
        .where(table.c.rule.in_(rules))
        .group_by(begin, table.c.rule)
        .order_by(begin, table.c.rule)
    )


def _within(since_us: int, until_us: int) -> ColumnElement[bool]:
    """Return a condition for the rows of a period: its whole hours, and the minutes before and after them."""
    table = schema.usage
    first_us = since_us - since_us % (MINUTE_SECONDS * 1_000_000)
    hour_us = HOUR_SECONDS * 1_000_000
    begin_us, end_us = -(-first_us // hour_us) * hour_us, until_us // hour_us * hour_us
    if begin_us >= end_us:
        return and_(table.c.step == MINUTE_SECONDS, table.c.at_us >= first_us, table.c.at_us < until_us)
    minutes = ((first_us, begin_us), (end_us, until_us))
    return or_(
        and_(table.c.step == HOUR_SECONDS, table.c.at_us >= begin_us, table.c.at_us < end_us),
        *(
            and_(table.c.step == MINUTE_SECONDS, table.c.at_us >= low, table.c.at_us < high)
            for low, high in minutes
            if low < high
        ),
    )


def _usage(at_us: int, rule: str, *sums: Any) -> UsageStep:
    figures = [int(value) for value in sums]
    times = figures[len(COUNTS) :]
    counts = dict(zip(COUNTS, figures, strict=False))
    return UsageStep(at_us=int(at_us), rule=rule, **counts, p50_us=quantile(times, 0.5), p99_us=quantile(times, 0.99))
