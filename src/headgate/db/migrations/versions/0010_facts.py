"""Declare the facts that stored rules use: from this version on, rules with undeclared facts are refused."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0010"
down_revision = "0009"

Json = sa.JSON().with_variant(JSONB(), "postgresql")
rules = sa.table("headgate_rules", sa.column("dimension", sa.Text), sa.column("match", Json))
settings = sa.table("headgate_settings", sa.column("section", sa.Text), sa.column("value", Json))
KNOWN = {
    *("global", "user", "ip", "api_key", "tenant", "endpoint", "route", "method", "tier", "address", "country"),
    *("domain", "descriptor_keys", "generic_key", "source_cluster", "destination_cluster", "query_match", "descriptor"),
}


def upgrade() -> None:
    connection = op.get_bind()
    named: set[str] = set()
    for dimension, match in connection.execute(sa.select(rules.c.dimension, rules.c.match)):
        named |= {*dimension.split("+"), *(match or {})}
    declared = sorted(named - KNOWN)
    if not declared:
        return
    here = settings.c.section == "headgate"
    found = connection.execute(sa.select(settings.c.value).where(here)).scalar()
    value = {**(found or {}), "facts": declared}
    if found is None:
        connection.execute(sa.insert(settings).values(section="headgate", value=value))
    else:
        connection.execute(sa.update(settings).where(here).values(value=value))
