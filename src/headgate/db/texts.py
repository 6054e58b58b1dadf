"""Checks that a database can store a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.db.records import unstorable
from headgate.errors import InvalidRule, Problem
from headgate.rules.users import MAX_ID


def require_short(where: str, field: str, value: str) -> None:
    """Raise `InvalidRule` for a text that is too long for PostgreSQL's indexes."""
    if not 1 <= len(value) <= MAX_ID:
        raise InvalidRule(Problem(where, field, f"must have from 1 to {MAX_ID} characters"))


def require_storable(where: str, value: Any) -> None:
    """Raise `InvalidRule` if a value contains a text that a database cannot store."""
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
