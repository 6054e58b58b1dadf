"""Directory: looks up a snapshot's users. A rules file's users are all in memory; a database's users are not."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from headgate.rules.users import User


class _Unknown(Enum):
    UNKNOWN = auto()


Unknown = Literal[_Unknown.UNKNOWN]
UNKNOWN: Final = _Unknown.UNKNOWN  # the user is not in memory, and may have a tier and overrides


class Directory(Protocol):
    """Finds users by id; None means a user without tier and overrides. Safe to share between threads."""

    @property
    def has_tiers(self) -> bool:
        """Whether any user has a tier."""
        ...

    @property
    def has_overrides(self) -> bool:
        """Whether any user has an override."""
        ...

    def recall(self, user_id: str) -> User | Unknown | None:
        """Return the user if in memory, else `UNKNOWN`. Never waits."""
        ...

    def find(self, user_id: str) -> User | None:
        """Return the user, looked up if necessary. Waits only for a short time, then assumes a user without a tier."""
        ...

    async def find_async(self, user_id: str) -> User | None:
        """Look up a user without blocking the event loop."""
        ...


class Listed:
    """Users who are all in memory."""

    __slots__ = ("_users", "has_overrides", "has_tiers", "recall")

    def __init__(self, users: Iterable[User]) -> None:
        self._users = {user.id: user for user in users}
        self.has_tiers = any(user.tier is not None for user in self._users.values())
        self.has_overrides = any(user.overrides or user.anchor is not None for user in self._users.values())
        self.recall = self._users.get

    def find(self, user_id: str) -> User | None:
        return self._users.get(user_id)

    async def find_async(self, user_id: str) -> User | None:
        return self._users.get(user_id)
