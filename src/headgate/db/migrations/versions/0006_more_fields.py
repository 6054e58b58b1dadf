"""A column for all fields of rules without their own column."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision = "0005"

Json = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    # With a default: an older Headgate that is still running writes rules without it.
    op.add_column("headgate_rules", sa.Column("more", Json, nullable=False, server_default="{}"))
