"""Inserts rows, or adds to existing ones: one statement for many rows, on PostgreSQL and SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, bindparam, column, func, select
from sqlalchemy.dialects import postgresql, sqlite


def add_rows(connection: Connection, table: Table, rows: list[dict[str, Any]], figures: Sequence[str] = ()) -> None:
    """Insert rows. If an id exists, add the `figures` to its row."""
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        adding: Any = postgresql.insert(table).from_select(list(rows[0]), _sent(table, list(rows[0])))
        values: Any = {"rows": rows}
    else:
        adding, values = sqlite.insert(table), rows
    if figures:
        sums = {name: table.c[name] + adding.excluded[name] for name in figures}
        adding = adding.on_conflict_do_update(index_elements=["id"], set_=sums)
    else:
        adding = adding.on_conflict_do_nothing()
    connection.execute(adding, values)


def _sent(table: Table, names: list[str]) -> Select[Any]:
    """Return PostgreSQL's rows of the parameter `rows`. One parameter for all of them is far faster than one each."""
    columns = (column(name, table.c[name].type) for name in names)
    rows = func.jsonb_to_recordset(bindparam("rows", type_=postgresql.JSONB)).table_valued(*columns, name="sent")
    sent = rows.render_derived(with_types=True)
    return select(*sent.c).order_by(sent.c.id)
