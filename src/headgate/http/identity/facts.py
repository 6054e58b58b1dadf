"""Facts from outside: from a user's function, or stored for an API key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from headgate.errors import InvalidCheck


def checked_facts(facts: Any, where: str = "identify") -> dict[str, str]:
    """Facts as text. One that is None is unknown, and left out; no facts at all may be None as well.

    Raises `InvalidCheck` that begins with `where`, and names the fact and its value.
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
    """One name for the client of a request, for limits that know nothing of rules: the surest that there is.

    It begins with the kind of name, so that names of different kinds cannot collide.
    """
    for fact in ("user", "api_key", "ip"):
        name = facts.get(fact)
        if name is not None:
            return f"{fact}:{name}"
    return "unknown"  # as of requests of which the app's own function says nothing: all are one client


def text_of(header: str) -> str:
    """A header's value as its sender meant it: UTF-8 where it is that, else Latin-1; without spaces around it."""
    header = header.strip()
    if header.isascii():
        return header
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header
