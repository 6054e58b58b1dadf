"""Which texts a database can keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.db.records import unstorable
from headgate.errors import InvalidRule, Problem
from headgate.rules.users import MAX_ID


def require_short(where: str, field: str, value: str) -> None:
    """Raises `InvalidRule` when a text is longer than PostgreSQL can have in an index."""
    if not 1 <= len(value) <= MAX_ID:
        raise InvalidRule(Problem(where, field, f"must have from 1 to {MAX_ID} characters"))


def require_storable(where: str, value: Any) -> None:
    """Raises `InvalidRule` when there is a text in a value that a database cannot keep."""
    if isinstance(value, str):
        problem = unstorable(value)
        if problem is not None:
            raise InvalidRule(Problem(where, "", problem))
    elif isinstance(value, Mapping):
        for name, member in value.items():
            require_storable(where, name)
            require_storable(where, member)
    elif isinstance(value, list | tuple):
        for member in value:
            require_storable(where, member)
