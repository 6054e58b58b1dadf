"""API keys, hashed before other code sees them."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from headgate.errors import InvalidCheck, InvalidRule
from headgate.http.identity.facts import checked_facts, text_of
from headgate.http.identity.rejections import Rejected
from headgate.http.identity.steps import OperatorCall, Steps

log = logging.getLogger("headgate")

MAX_KEY: Final = 1_024  # characters
_PREFIX: Final = "sha256-"
_HASHED: Final = re.compile(r"sha256-[0-9a-f]{40}").fullmatch
_NOT_OF_A_KEY: Final = frozenset({"api_key", "ip", "address", "endpoint", "method"})  # facts of the request itself

KeyFacts = Mapping[str, Any]
Lookup = Callable[[str], KeyFacts | Awaitable[KeyFacts | None] | None]


def hashed_api_key(key: str) -> str:
    """Return the fact `api_key` of requests with this key, as exemptions, `api_keys` and `reset` expect it.

    It is `sha256-` and the first 160 bits of the SHA-256 of the key in UTF-8. It does not reveal the key if keys are
    random. In a shell: `printf %s "$KEY" | sha256sum | cut -c1-40`.
    """
    return _PREFIX + sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def checked_api_keys(value: Any) -> Mapping[str, dict[str, str]] | Lookup | None:
    """Check the option `api_keys`. No message shows a key: a mapping may hold unhashed keys by mistake."""
    if value is None or callable(value):
        kept: Lookup | None = value
        return kept
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping or a function, got {type(value).__name__}")  # noqa: TRY004
    problems = []
    facts = {}
    for number, (key, found) in enumerate(value.items(), start=1):
        if not isinstance(key, str) or not _HASHED(key):
            problems.append(f"number {number}: its key must be what hashed_api_key() gives, and not the API key itself")
            continue
        try:
            facts[key] = _facts_of_a_key(found)
        except InvalidCheck as error:
            problems.append(f"{key}: {str(error).partition(': ')[2]}")
    if problems:
        raise InvalidRule(*problems)
    return facts


class ApiKeys:
    """Turns an API key into facts."""

    def __init__(self, known: Mapping[str, dict[str, str]] | Lookup | None) -> None:
        self._lookup = known if callable(known) else None
        self._listed = None if callable(known) else known

    @property
    def waits(self) -> bool:
        """Whether a function looks up keys: it may take time."""
        return self._lookup is not None

    def facts(self, header: str) -> Steps[dict[str, str]]:
        """Return the facts of a key: its hash, and the facts stored for it. Raises `Rejected`."""
        if len(header) > MAX_KEY:
            raise Rejected("api_key_too_long")
        key = text_of(header)
        if not key:
            return {}
        hashed = hashed_api_key(key)
        found: dict[str, str] | None = {}
        if self._listed is not None:
            found = self._listed.get(hashed)
        elif self._lookup is not None:
            found = _answer((yield OperatorCall(self._lookup, key)))
        if found is None:
            raise Rejected("api_key_unknown")
        return {**found, "api_key": hashed}


def _answer(answer: Any) -> dict[str, str] | None:
    """Return the facts from the operator's function. Log an exception's type only: its message may hold the key."""
    if isinstance(answer, Exception):
        log.error("identity: api_keys: the function that looks up API keys raised %s", type(answer).__name__)
        raise Rejected("api_key_failed")
    if answer is None:
        return None
    try:
        return _facts_of_a_key(answer)
    except InvalidCheck:
        log.error(  # noqa: TRY400 - the traceback would show what the function returned
            "identity: api_keys: the function that looks up API keys must return a mapping of facts, texts or whole "
            "numbers, without %s; or None",
            ", ".join(sorted(_NOT_OF_A_KEY)),
        )
        raise Rejected("api_key_failed") from None


def _facts_of_a_key(found: Any) -> dict[str, str]:
    if found is None:
        raise InvalidCheck("api_keys: must give a mapping of facts, got None")
    facts = checked_facts(found, "api_keys")
    taken = sorted(_NOT_OF_A_KEY.intersection(facts))
    if taken:
        raise InvalidCheck(f"api_keys: {taken[0]}: is not a fact that an API key can have")
    return facts
