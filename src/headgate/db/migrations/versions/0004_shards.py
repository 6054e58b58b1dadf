"""Shards of rules."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    # With a default: an older Headgate that is still running writes rules without it.
    op.add_column("headgate_rules", sa.Column("shards", sa.Integer(), nullable=False, server_default="1"))
