"""Migrations: how a database gets the tables of `headgate.db.schema`, step by step. Each is a file in `versions/`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from headgate.db.connection import Database
from headgate.db.schema import VERSION_TABLE

HERE: Final = Path(__file__).parent

log = logging.getLogger("headgate")


def migrate(database: str | Database) -> None:
    """Bring a database's tables up to date, from whatever they are, even none. Does nothing when they are.

    All or nothing, and safe when several processes do it at once: one of them does, the others wait. A database
    that a newer Headgate has migrated further is left alone. Raises `DatabaseError`.
    """
    opened = Database(database) if isinstance(database, str) else database
    try:
        _migrate(opened)
    finally:
        if opened is not database:
            opened.close()


def _migrate(database: Database) -> None:
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    latest = script.get_current_head()
    with database.read() as connection:
        current = _revision(connection)
    if current == latest or _is_newer(script, current, database.name):
        return
    database.prepare()
    with database.write(lock=True) as connection:
        current = _revision(connection)  # again: another may have been faster
        if current != latest and not _is_newer(script, current, database.name):
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            log.info("%s: migrated from %s to %s", database.name, current or "nothing", latest)


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def _is_newer(script: ScriptDirectory, revision: str | None, name: str) -> bool:
    if revision is None or any(known.revision == revision for known in script.walk_revisions()):
        return False
    log.warning("%s: migrated to %s by a newer Headgate: left as it is", name, revision)
    return True
