"""Reasons of changes, and the serving processes."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("headgate_changes", sa.Column("reason", sa.Text(), nullable=False, server_default=""))
    op.create_table(
        "headgate_nodes",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=False),
    )
