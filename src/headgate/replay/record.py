"""Record: one request of a log, as rules see it."""

from __future__ import annotations

from typing import Final, NamedTuple

from headgate.core.cost import Cost
from headgate.core.quota import MAX_INT
from headgate.http.identity.address import Trust

MAX_REMEMBERED: Final = 100_000  # normalized addresses, and hashed keys
IPV6_PREFIX: Final = 64  # bits of an IPv6 address that identify a client, as in the middleware


class LogRecord(NamedTuple):
    """A request: its time, facts and cost."""

    at_us: int
    facts: dict[str, str]
    cost: Cost = 1


class ClientAddresses:
    """Normalizes addresses as the middleware does: IPv6 addresses of one /64 are one client."""

    def __init__(self) -> None:
        self._trust = Trust((), 1, IPV6_PREFIX)
        self._known: dict[str, dict[str, str]] = {}
        self.get = self._known.get  # the facts of a cached address

    def facts(self, address: str) -> dict[str, str]:
        """Return the facts of an address: `ip`, and `address` if `ip` is a network. Do not change the result.

        In a list, as in X-Forwarded-For, the last address counts: the one that the nearest proxy wrote.
        """
        facts = self._known.get(address)
        if facts is None:
            last = address.rpartition(",")[2].strip()
            facts = dict(self._trust.see(last).facts) if last else {}
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[address] = facts
        return facts


def cost_of(value: object) -> int:
    """Parse a cost in a log. Raises `ValueError`."""
    cost = int(value) if isinstance(value, str | int | float) else -1
    if not 0 <= cost <= MAX_INT:
        raise ValueError(f"not a cost: {value!r}")
    return cost
