"""Escape the parameters of other frameworks in stored patterns, such as `<id>` and `:id`.

From this version on, a rule with such a pattern is refused. Until now it was literal text. Escaped, it still is, so the
stored rules apply to the same requests as before. The log names them, since hardly any request has such a path.
"""

import logging
import re

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0011"
down_revision = "0010"

Json = sa.JSON().with_variant(JSONB(), "postgresql")
rules = sa.table("headgate_rules", sa.column("id", sa.Text), sa.column("endpoints", Json))
ESCAPES = {"<": "%3C", ">": "%3E", ":": "%3A"}
UNREADABLE = re.compile(r"[<>]|(?<=/):(?=[^\W\d])")

log = logging.getLogger("headgate")


def upgrade() -> None:
    connection = op.get_bind()
    for rule_id, endpoints in connection.execute(sa.select(rules.c.id, rules.c.endpoints)).all():
        escaped = [UNREADABLE.sub(lambda found: ESCAPES[found[0]], pattern) for pattern in endpoints]
        if escaped != endpoints:
            connection.execute(sa.update(rules).where(rules.c.id == rule_id).values(endpoints=escaped))
            log.warning(
                "rule %r: endpoints: %s was literal text, and is now written %s; to match any segment, write it in "
                "braces: '/users/{id}'",
                rule_id,
                endpoints,
                escaped,
            )
