"""Rules, tiers, users, overrides, exemptions, settings, the change log and the snapshot's version."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None

Json = sa.JSON().with_variant(JSONB(), "postgresql")
Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    snapshot = op.create_table(
        "headgate_snapshot",
        sa.Column("id", sa.Integer(), sa.CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("rules_version", sa.BigInteger(), nullable=False),
    )
    op.bulk_insert(snapshot, [{"id": 1, "version": 1, "rules_version": 1}])
    op.create_table(
        "headgate_rules",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("dimension", sa.Text(), nullable=False),
        sa.Column("endpoints", Json, nullable=False),
        sa.Column("methods", Json, nullable=False),
        sa.Column("tiers", Json, nullable=False),
        sa.Column("match", Json, nullable=False),
        sa.Column("algorithm", sa.Text(), nullable=False),
        sa.Column("limit", sa.BigInteger(), nullable=False),
        sa.Column("window_us", sa.BigInteger(), nullable=False),
        sa.Column("burst", sa.BigInteger()),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("max_delay_us", sa.BigInteger()),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("group", sa.Text()),
        sa.Column("sync", sa.Text(), nullable=False),
        sa.Column("failure_mode", sa.Text()),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
    )
    op.create_table(
        "headgate_tiers",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "headgate_users",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tier", sa.Text()),
    )
    op.create_index("headgate_users_tier", "headgate_users", ["tier"])
    op.create_table(
        "headgate_overrides",
        sa.Column("user_id", sa.Text(), sa.ForeignKey("headgate_users.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("rule", sa.Text(), sa.ForeignKey("headgate_rules.id"), primary_key=True),
        sa.Column("limit", sa.BigInteger(), nullable=False),
        sa.Column("window_us", sa.BigInteger()),
        sa.Column("burst", sa.BigInteger()),
        sa.Column("expires_us", sa.BigInteger()),
    )
    op.create_index("headgate_overrides_rule", "headgate_overrides", ["rule"])
    op.create_table(
        "headgate_exemptions",
        sa.Column("type", sa.Text(), primary_key=True),
        sa.Column("value", sa.Text(), primary_key=True),
    )
    op.create_table(
        "headgate_settings",
        sa.Column("section", sa.Text(), primary_key=True),
        sa.Column("value", Json, nullable=False),
    )
    op.create_table(
        "headgate_changes",
        sa.Column("id", Serial, primary_key=True, autoincrement=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("before", Json),
        sa.Column("after", Json),
    )
    op.create_index("headgate_changes_version", "headgate_changes", ["version"])
    op.create_index("headgate_changes_subject", "headgate_changes", ["kind", "subject"])
