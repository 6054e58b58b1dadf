"""Directory: where a snapshot's users are found. Those of a file are all at hand; those in a database are not."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, Literal, Protocol

from headgate.rules.users import User


class _Unknown(Enum):
    UNKNOWN = auto()


Unknown = Literal[_Unknown.UNKNOWN]
UNKNOWN: Final = _Unknown.UNKNOWN  # a user who may have a tier and overrides, or not


class Directory(Protocol):
    """Finds users by id. None is a user without tier and overrides. Safe to share between threads."""

    @property
    def has_tiers(self) -> bool:
        """Whether any user has a tier."""
        ...

    @property
    def has_overrides(self) -> bool:
        """Whether any user has an override."""
        ...

    def recall(self, user_id: str) -> User | Unknown | None:
        """The user if they are at hand, else `UNKNOWN`. Never waits."""
        ...

    def find(self, user_id: str) -> User | None:
        """The user, looked up if need be. Waits a short time at most: then they are taken for one without a tier."""
        ...

    async def find_async(self, user_id: str) -> User | None:
        """Look up a user without blocking the event loop."""
        ...


class Listed:
    """Users who are all at hand."""

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
