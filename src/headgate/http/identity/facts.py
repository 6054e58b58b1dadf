"""Facts from the app's function, or stored for an API key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from headgate.errors import InvalidCheck


def checked_facts(facts: Any, where: str = "identify") -> dict[str, str]:
    """Return facts as strings, without those that are None. `facts` itself may be None.

    Raises `InvalidCheck`, which begins with `where` and names the fact and its value.
    """
    if facts is None:
        return {}
    if not isinstance(facts, Mapping):
        raise InvalidCheck(f"{where}: must give a mapping of facts such as {{'user': 'alice'}}, got {facts!r}")
    texts = {}
    for name, value in facts.items():
        if not isinstance(name, str) or not name:
            raise InvalidCheck(f"{where}: the name of a fact must be a non-empty string, got {name!r}")
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, int | UUID) and not isinstance(value, bool):
            texts[name] = str(value)
        elif value is not None:
            raise InvalidCheck(f"{where}: {name}: must be a string, an integer or a UUID, got {value!r}")
    return texts


def client_of(facts: Mapping[str, str]) -> str:
    """Return one name for a request's client, for limits without rules: its user, else API key, else address.

    It begins with the fact's name, so that a user and an API key cannot collide.
    """
    for fact in ("user", "api_key", "ip"):
        name = facts.get(fact)
        if name is not None:
            return f"{fact}:{name}"
    return "unknown"  # the app's function gave no facts: all such requests are one client


def text_of(header: str) -> str:
    """Return a header's value, stripped, decoded as UTF-8 if it is valid UTF-8, else as Latin-1."""
    header = header.strip()
    if header.isascii():
        return header
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header
