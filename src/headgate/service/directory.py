"""The data directory: the files that a service keeps on its own disk. Several services may share one."""

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
from headgate.settings import ADMIN_TOKEN_FILE, DATABASE_FILE, Settings, names_of

PRIVATE: Final = 0o700
LINK_FILE: Final = "console-link"  # holds the hash of the code in the console's one-time sign-in link
HEAD: Final = """\
# The last rules of {name} that this service used: version {version}. Headgate writes this file, and reads it only
# when it starts and cannot reach the database. It holds no users' tiers and overrides.

"""

log = logging.getLogger("headgate")


class DataDirectory:
    """A directory that exists and is writable. Raises `InvalidSettings` if it cannot be."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.token_file = self.path / ADMIN_TOKEN_FILE
        self.last_good_file = self.path / "rules-last-good.toml"
        self.events = self.path / "events"  # waiting to be written to the database
        probe = self.path / f".{uuid4().hex}"
        try:
            self.path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise InvalidSettings(f"{names_of('data_dir')}: {self.path}: cannot be used: {error.strerror}") from error

    def admin_token(self) -> str:
        """Return the admin token. The first call creates it, in a file that only this user can read."""
        fresh = self.token_file.with_suffix(f".{uuid4().hex}")
        try:
            if not self.token_file.exists():
                fresh.touch(mode=0o600)
                fresh.write_text(f"hg_{secrets.token_urlsafe(32)}\n")
                try:
                    os.link(fresh, self.token_file)  # fails if another process was faster
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
        """Create the database's file so that only this user can read it; SQLite would let others."""
        file = self.path / DATABASE_FILE
        try:
            file.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            pass
        except OSError as error:
            raise InvalidSettings(f"{file} cannot be made: {error.strerror}") from error

    def keep(self, snapshot: Snapshot, name: str) -> None:
        """Save the current rules for a start without the database. Raises `OSError`, and then keeps the old file."""
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
        """Return the last saved rules of a database; None if there are none that can be read."""
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
            log.warning("ignoring the last good rules, which are no longer valid: %s", error)
            return None


def admin_token(settings: Settings, directory: DataDirectory) -> str:
    """Return the admin token of the settings, else of the data directory. Raises `InvalidSettings`."""
    return directory.admin_token() if settings.admin_token is None else settings.admin_token.get_secret_value()


def make_link_code(directory: Path) -> str:
    """Create the code of a one-time sign-in link to the console, and save its hash. Raises `OSError`."""
    code = secrets.token_urlsafe(24)
    file = os.open(directory / LINK_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w") as opened:
        opened.write(hash_of(code))
    return code
