"""The serving processes: each writes its state, and reads the others'."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy import delete, insert, select, update

from headgate.db import schema
from headgate.db.connection import Database

FORGET_SECONDS: Final = 3_600  # after which a silent process is deleted


class NodeRow(NamedTuple):
    """The last reported state of a process."""

    id: str
    at_us: int
    status: dict[str, Any]


class Nodes:
    """The table of processes. Safe to share between threads; every method raises `DatabaseError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def report(self, row: NodeRow) -> list[NodeRow]:
        """Write one process's state. Returns the last state of all processes, by id."""
        table = schema.nodes
        with self._database.write() as connection:
            found = connection.execute(update(table).where(table.c.id == row.id).values(**row._asdict()))
            if not found.rowcount:
                connection.execute(insert(table), row._asdict())
                connection.execute(delete(table).where(table.c.at_us < row.at_us - FORGET_SECONDS * 1_000_000))
        with self._database.read() as connection:
            return [NodeRow(*one) for one in connection.execute(select(table).order_by(table.c.id))]

    def forget(self, node_id: str) -> None:
        """Delete a process that stops."""
        with self._database.write() as connection:
            connection.execute(delete(schema.nodes).where(schema.nodes.c.id == node_id))
