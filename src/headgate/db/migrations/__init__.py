"""Migrations, which create the tables of `headgate.db.schema` step by step. Each is a file in `versions/`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, column, inspect, select, table

from headgate.db.connection import MIGRATION_SECONDS, Database
from headgate.db.schema import VERSION_TABLE

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

HERE: Final = Path(__file__).parent

log = logging.getLogger("headgate")


def migrate(database: str | Database) -> None:
    """Bring a database's tables up to date, from any earlier version or none.

    It is atomic, and safe when several processes do it at once: one of them migrates, the others wait. A database that
    a newer Headgate has migrated further stays as it is. Raises `DatabaseError`.
    """
    opened = Database(database) if isinstance(database, str) else database
    try:
        with opened.read() as connection:
            current = _revision(connection)
        if current != latest():
            _migrate(opened, current)
    finally:
        if opened is not database:
            opened.close()


def latest() -> str:
    """Return the revision of our last migration, from the file names."""
    return max(path.name.partition("_")[0] for path in (HERE / "versions").glob("[0-9]*.py"))


def _migrate(database: Database, current: str | None) -> None:
    # Imported here: most starts find everything up to date, and the import is slow.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    if _is_newer(script, current, database.name):
        return
    database.prepare()
    with database.write(lock=True, seconds=MIGRATION_SECONDS) as connection:
        current = _revision(connection)  # again: another process may have been faster
        if current != latest() and not _is_newer(script, current, database.name):
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            log.info("%s: migrated from %s to %s", database.name, current or "nothing", latest())


def _revision(connection: Connection) -> str | None:
    """Return the revision that Alembic recorded; None if there is none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.scalar(select(column("version_num")).select_from(table(VERSION_TABLE)))


def _is_newer(script: ScriptDirectory, revision: str | None, name: str) -> bool:
    if revision is None or any(known.revision == revision for known in script.walk_revisions()):
        return False
    log.warning("%s: migrated to %s by a newer Headgate: left as it is", name, revision)
    return True
