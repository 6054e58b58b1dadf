"""Events, their counts, and the progress of their writers."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"

Json = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    events = op.create_table(
        "headgate_events",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("allowed", sa.Boolean(), nullable=False),
        sa.Column("dimension", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("user", sa.Text()),
        sa.Column("ip", sa.Text()),
        sa.Column("api_key", sa.Text()),
        sa.Column("tenant", sa.Text()),
        sa.Column("endpoint", sa.Text()),
        sa.Column("method", sa.Text()),
        sa.Column("tier", sa.Text()),
        sa.Column("facts", Json, nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.Column("limit", sa.BigInteger(), nullable=False),
        sa.Column("remaining", sa.BigInteger(), nullable=False),
        sa.Column("retry_after_us", sa.BigInteger()),
        sa.Column("weight", sa.BigInteger(), nullable=False),
    )
    op.create_index("headgate_events_at", "headgate_events", ["at_us", "id"])
    op.create_index("headgate_events_rule", "headgate_events", ["rule", "at_us", "id"])
    for name in ("user", "ip", "api_key", "tenant"):
        known = events.c[name].is_not(None)
        op.create_index(
            f"headgate_events_{name}",
            "headgate_events",
            [name, "at_us", "id"],
            sqlite_where=known,
            postgresql_where=known,
        )
    op.create_table(
        "headgate_event_counts",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("minute_us", sa.BigInteger(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("dimension", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("own", sa.Boolean(), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
    )
    op.create_index("headgate_event_counts_minute", "headgate_event_counts", ["minute_us"])
    op.create_index("headgate_event_counts_dimension", "headgate_event_counts", ["dimension", "minute_us"])
    op.create_table(
        "headgate_event_runs",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
    )
