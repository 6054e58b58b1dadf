"""How several regions share a rule's limit."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("headgate_rules", sa.Column("regions", sa.Text()))
