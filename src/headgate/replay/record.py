"""Record: one request of a log, as far as rules can see it."""

from __future__ import annotations

from typing import Final, NamedTuple

from headgate.core.cost import Cost
from headgate.core.quota import MAX_INT
from headgate.http.identity import hashed_api_key
from headgate.http.identity.address import Trust

MAX_REMEMBERED: Final = 100_000  # addresses and keys that are written as the service writes them
IPV6_PREFIX: Final = 64  # bits of an IPv6 address that make one client, as in the middleware


class LogRecord(NamedTuple):
    """A request: when it was made, what is known of it, and what it costs."""

    at_us: int
    facts: dict[str, str]
    cost: Cost = 1


class ClientAddresses:
    """Writes addresses as the middleware does: IPv6 addresses of one /64 are one client."""

    def __init__(self) -> None:
        self._trust = Trust((), 1, IPV6_PREFIX)
        self._known: dict[str, dict[str, str]] = {}
        self.get = self._known.get  # the facts of an address that is remembered

    def facts(self, address: str) -> dict[str, str]:
        """Return the facts of an address: `ip`, and `address` where `ip` stands for a group. Not to be changed.

        Of a list, as in X-Forwarded-For, the last address counts: the one that the nearest proxy wrote.
        """
        facts = self._known.get(address)
        if facts is None:
            last = address.rpartition(",")[2].strip()
            facts = dict(self._trust.see(last).facts) if last else {}
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[address] = facts
        return facts


class ApiKeyHasher:
    """Hashes API keys as the middleware does, so that reports never show one."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def hash_of(self, key: str) -> str:
        hashed = self._known.get(key)
        if hashed is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            hashed = self._known[key] = hashed_api_key(key)
        return hashed


def cost_of(value: object) -> int:
    """Return the cost that a log states. Raises `ValueError`."""
    cost = int(value) if isinstance(value, str | int | float) else -1
    if not 0 <= cost <= MAX_INT:
        raise ValueError(f"not a cost: {value!r}")
    return cost
