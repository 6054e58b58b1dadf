"""The data directory: what a service keeps on its own disk. Several services may share one."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from headgate.db.tokens import hash_of
from headgate.errors import InvalidRule, InvalidSettings
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.export import text_of
from headgate.rules.sources.file import load
from headgate.settings import ADMIN_TOKEN_FILE, DATABASE_FILE, Settings, variable

PRIVATE: Final = 0o700
LINK_FILE: Final = "console-link"  # the hash of the code of the link that signs in to the console once
HEAD: Final = """\
# The rules of {name} as they were last in force here: version {version}. Written by Headgate, and read by it alone:
# when it starts and cannot reach the database. Users' tiers and overrides are not in it.

"""

log = logging.getLogger("headgate")


class DataDirectory:
    """A directory that is there, and that we may write to. Raises `InvalidSettings` when it cannot be."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.token_file = self.path / ADMIN_TOKEN_FILE
        self.last_good_file = self.path / "rules-last-good.toml"
        self.events = self.path / "events"  # that are yet to be written to the database
        probe = self.path / f".{uuid4().hex}"
        try:
            self.path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            name = variable("data_dir")
            raise InvalidSettings(f"{name} (--data-dir): {self.path}: cannot be used: {error.strerror}") from error

    def admin_token(self) -> str:
        """The token that opens everything: made when it is first asked for, and kept where only we can read it."""
        fresh = self.token_file.with_suffix(f".{uuid4().hex}")
        try:
            if not self.token_file.exists():
                fresh.touch(mode=0o600)
                fresh.write_text(f"hg_{secrets.token_urlsafe(32)}\n")
                try:
                    os.link(fresh, self.token_file)  # which fails if another was faster
                except FileExistsError:
                    pass
                finally:
                    fresh.unlink()
            token = self.token_file.read_text().strip()
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or "it is not a text"
            raise InvalidSettings(f"the admin token in {self.token_file} cannot be read: {what}") from error
        if not token:
            raise InvalidSettings(f"{self.token_file} is empty: delete it to get a new token")
        return token

    def create_database(self) -> None:
        """Make the file of a database that is kept here, so that only we can read it; SQLite would let others."""
        file = self.path / DATABASE_FILE
        try:
            file.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            pass
        except OSError as error:
            raise InvalidSettings(f"{file} cannot be made: {error.strerror}") from error

    def keep(self, snapshot: Snapshot, name: str) -> None:
        """Write down the rules in force, for a start without the database. Raises `OSError`: then it is as it was."""
        fresh = self.last_good_file.with_suffix(f".{uuid4().hex}")
        text = HEAD.format(name=name, version=snapshot.version) + text_of(snapshot)
        try:
            fresh.touch(mode=0o600)
            with fresh.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.last_good_file)
        except OSError:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise

    def last_good(self, name: str) -> Snapshot | None:
        """The rules of a database that were last in force; None: there are none that can be read."""
        try:
            with self.last_good_file.open(encoding="utf-8", errors="replace") as file:
                first = file.readline()
        except OSError:
            return None
        if not first.startswith(HEAD.partition("{version}")[0].format(name=name)):
            log.info("the last good rules in %s are of another database", self.last_good_file)
            return None
        try:
            return load(self.last_good_file)
        except InvalidRule as error:
            log.warning("the last good rules are no good any more: %s", error)
            return None


def admin_token(settings: Settings, directory: DataDirectory) -> str:
    """The one of the settings, else the data directory's. Raises `InvalidSettings`."""
    return directory.admin_token() if settings.admin_token is None else settings.admin_token.get_secret_value()


def make_link_code(directory: Path) -> str:
    """Make the code of a link that signs in to the console once, and keep its hash. Raises `OSError`."""
    code = secrets.token_urlsafe(24)
    file = os.open(directory / LINK_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w") as opened:
        opened.write(hash_of(code))
    return code
