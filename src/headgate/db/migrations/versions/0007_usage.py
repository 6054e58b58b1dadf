"""Usage of each rule by minute and by hour."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

BOUNDS = (25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, "more")


def upgrade() -> None:
    counts = ("allowed", "refused", "shadow", "delayed", "failure_mode", "cost")
    op.create_table(
        "headgate_usage",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in counts),
        *(sa.Column(f"us_{bound}", sa.BigInteger(), nullable=False) for bound in BOUNDS),
    )
    op.create_index("headgate_usage_rule", "headgate_usage", ["rule", "step", "at_us"])
    op.create_index("headgate_usage_at", "headgate_usage", ["step", "at_us"])
