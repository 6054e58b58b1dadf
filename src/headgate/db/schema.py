"""The tables, for PostgreSQL and SQLite. `migrations/` creates them.

Names begin with `headgate_`, so that the tables can share a database with others. Times and durations are in whole
microseconds, times since the Unix epoch. Lists and tables inside a record are JSON.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import JSON, BigInteger, Boolean, Column, ForeignKey, Index, Integer, MetaData, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

VERSION_TABLE: Final = "headgate_migrations"  # the migrations of a database

metadata = MetaData()
Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
Serial = BigInteger().with_variant(Integer(), "sqlite")  # SQLite autoincrements only columns of this type

snapshot = Table(  # one row
    "headgate_snapshot",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("version", BigInteger, nullable=False),  # grows with every change
    Column("rules_version", BigInteger, nullable=False),  # the version of the last change of anything except users
)

rules = Table(
    "headgate_rules",
    metadata,
    Column("id", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),  # the rules' order in the snapshot
    Column("version", BigInteger, nullable=False),  # of the snapshot in which it last changed
    Column("name", Text, nullable=False),
    Column("dimension", Text, nullable=False),
    Column("endpoints", Json, nullable=False),
    Column("methods", Json, nullable=False),
    Column("tiers", Json, nullable=False),
    Column("match", Json, nullable=False),
    Column("algorithm", Text, nullable=False),
    Column("limit", BigInteger, nullable=False),
    Column("window_us", BigInteger, nullable=False),
    Column("burst", BigInteger),  # null: equal to the limit
    Column("action", Text, nullable=False),
    Column("max_delay_us", BigInteger),
    Column("priority", BigInteger, nullable=False),
    Column("group", Text),
    Column("sync", Text, nullable=False),
    Column("shards", Integer, nullable=False, server_default="1"),
    Column("regions", Text),  # null: as in the settings
    Column("failure_mode", Text),
    Column("cost", BigInteger, nullable=False),
    Column("status", Integer, nullable=False),
    Column("message", Text, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("more", Json, nullable=False, server_default="{}"),  # fields without a column, as in a rules file
)

tiers = Table(
    "headgate_tiers",
    metadata,
    Column("name", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
)

users = Table(
    "headgate_users",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tier", Text),
    Column("anchor", Json),  # start of the user's calendar periods: a number or a string
    Index("headgate_users_tier", "tier"),
)

overrides = Table(
    "headgate_overrides",
    metadata,
    Column("user_id", Text, ForeignKey("headgate_users.id", ondelete="CASCADE"), primary_key=True),
    Column("rule", Text, ForeignKey("headgate_rules.id"), primary_key=True),
    Column("limit", BigInteger, nullable=False),
    Column("window_us", BigInteger),
    Column("burst", BigInteger),
    Column("expires_us", BigInteger),
    Index("headgate_overrides_rule", "rule"),
)

exemptions = Table(
    "headgate_exemptions",
    metadata,
    Column("type", Text, primary_key=True),
    Column("value", Text, primary_key=True),
)

settings = Table(
    "headgate_settings",
    metadata,
    Column("section", Text, primary_key=True),  # "headgate", "penalties"
    Column("value", Json, nullable=False),
)

changes = Table(
    "headgate_changes",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("version", BigInteger, nullable=False),  # of the snapshot after the change
    Column("at_us", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),  # "create", "update", "delete", "reset"
    Column("kind", Text, nullable=False),  # "rule", "tier", "user", "exemption", "settings", "token", "counts"
    Column("subject", Text, nullable=False),  # its id or name
    Column("reason", Text, nullable=False, server_default=""),  # empty: none
    Column("before", Json),  # as in a rules file; null: there was none
    Column("after", Json),  # null: deleted
    Index("headgate_changes_version", "version"),
    Index("headgate_changes_subject", "kind", "subject"),
)

tokens = Table(  # of the service's callers; never the secrets themselves
    "headgate_tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hash", Text, nullable=False),  # SHA-256, in hexadecimal digits
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("scopes", Json, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    Column("revoked_us", BigInteger),
    Index("headgate_tokens_hash", "hash", unique=True),
    Index("headgate_tokens_name", "name"),
)

events = Table(  # refused requests, and those that a shadow rule would have refused
    "headgate_events",
    metadata,
    Column("id", Text, primary_key=True),  # grows with time, on one node
    Column("at_us", BigInteger, nullable=False),  # the store's time
    Column("node", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("allowed", Boolean, nullable=False),  # true: allowed, because the rule does not enforce
    Column("dimension", Text, nullable=False),  # the rule's
    Column("subject", Text, nullable=False),  # the subject that the rule counted
    Column("user", Text),
    Column("ip", Text),
    Column("api_key", Text),  # hashed
    Column("tenant", Text),
    Column("endpoint", Text),
    Column("method", Text),
    Column("tier", Text),
    Column("facts", Json, nullable=False),  # all other facts
    Column("cost", BigInteger, nullable=False),
    Column("limit", BigInteger, nullable=False),
    Column("remaining", BigInteger, nullable=False),
    Column("retry_after_us", BigInteger),  # null: never
    Column("weight", BigInteger, nullable=False),  # the number of events that it represents: more than one in a flood
    Index("headgate_events_at", "at_us", "id"),
    Index("headgate_events_rule", "rule", "at_us", "id"),
)
for _name in ("user", "ip", "api_key", "tenant"):
    _known = events.c[_name].is_not(None)
    Index(
        f"headgate_events_{_name}",
        *(events.c[_name], events.c.at_us, events.c.id),
        sqlite_where=_known,
        postgresql_where=_known,
    )

event_counts = Table(  # number of events per minute, subject and rule; exact even in floods
    "headgate_event_counts",
    metadata,
    Column("id", Text, primary_key=True),  # a hash of the following columns, up to the subject
    Column("minute_us", BigInteger, nullable=False),  # start of the minute
    Column("rule", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("dimension", Text, nullable=False),  # the subject's kind: "user", "ip" …; empty: all subjects
    Column("subject", Text, nullable=False),
    Column("own", Boolean, nullable=False),  # whether that is the rule's dimension
    Column("events", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Index("headgate_event_counts_minute", "minute_us"),
    Index("headgate_event_counts_dimension", "dimension", "minute_us"),
)

event_runs = Table(  # the progress of the writers of events, so that a batch counts once
    "headgate_event_runs",
    metadata,
    Column("id", Text, primary_key=True),  # one start of one process
    Column("batch", BigInteger, nullable=False),  # the last batch written
    Column("at_us", BigInteger, nullable=False),  # when it was written
)

USAGE_COUNTS: Final = ("allowed", "refused", "shadow", "delayed", "failure_mode", "cost")
USAGE_BOUNDS_US: Final = (25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000)
# Latency buckets: how many timed checks took at most so many microseconds, and more than the bound before.
USAGE_TIMES: Final = (*(f"us_{bound}" for bound in USAGE_BOUNDS_US), "us_more")

usage = Table(  # each rule's counts by minute and by hour
    "headgate_usage",
    metadata,
    Column("id", Text, primary_key=True),  # a hash of the next three columns
    Column("step", Integer, nullable=False),  # seconds: 60 or 3600
    Column("at_us", BigInteger, nullable=False),  # start of the step
    Column("rule", Text, nullable=False),  # empty: all checks
    *(Column(name, BigInteger, nullable=False) for name in (*USAGE_COUNTS, *USAGE_TIMES)),
    Index("headgate_usage_rule", "rule", "step", "at_us"),
    Index("headgate_usage_at", "step", "at_us"),
)

nodes = Table(  # the state of serving processes, which each writes every two seconds
    "headgate_nodes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at_us", BigInteger, nullable=False),  # time of the last report
    Column("status", Json, nullable=False),  # see headgate.service.fleet
)
