"""The facts and the cost in messages of `headgate.v1`."""

from __future__ import annotations

from typing import Final

from headgate.core.cost import Cost, checked_cost
from headgate.core.quota import MAX_INT
from headgate.errors import InvalidCheck
from headgate.service.protos import rate_limiter_pb2 as messages

Asking = messages.CheckRequest | messages.QuotaRequest | messages.ResetRequest

_FACTS: Final[dict[int, str | None]] = {
    messages.DIMENSION_UNSPECIFIED: "user",
    messages.USER: "user",
    messages.IP: "ip",
    messages.API_KEY: "api_key",
    messages.TENANT: "tenant",
    messages.GLOBAL: None,
}


def facts_of(message: Asking) -> dict[str, str]:
    """Return the facts of a request. An empty string counts as absent. Raises `InvalidCheck`."""
    mapping = message.facts
    facts = dict(mapping) if mapping else {}
    identifier, dimension = message.identifier, message.dimension
    if dimension == 1 and identifier and not facts:  # the common case
        facts["user"] = identifier
    elif identifier or dimension:
        _identify(facts, identifier, dimension)
    endpoint = message.endpoint
    if endpoint:
        _add(facts, "endpoint", endpoint)
    method = message.method
    if method:
        _add(facts, "method", method)
    tier = message.tier
    if tier:
        _add(facts, "tier", tier)
    return facts


def identity_of(dimension: int) -> str | None:
    """Return the name of the fact in `identifier`; None for GLOBAL or an unknown dimension."""
    return _FACTS.get(dimension)


def cost_of(message: messages.CheckRequest | messages.QuotaRequest) -> Cost:
    """Return the cost of a request. Raises `InvalidCheck`."""
    if message.costs:
        if message.HasField("cost"):
            raise InvalidCheck("cost, costs: give only one of them; a plain cost counts requests")
        return checked_cost(dict(message.costs))
    if not message.HasField("cost"):
        return 1
    cost = message.cost
    if not 0 <= cost <= MAX_INT:
        raise InvalidCheck(f"cost: must be a whole number from 0 to 2^53-1, got {cost}")
    return cost


def _identify(facts: dict[str, str], identifier: str, dimension: int) -> None:
    if dimension not in _FACTS:
        raise InvalidCheck(f"dimension: {dimension} is not known")
    fact = _FACTS[dimension]
    if fact is None:
        if identifier:
            raise InvalidCheck(f"identifier: dimension GLOBAL has none, got {identifier!r}")
    elif not identifier:
        raise InvalidCheck(f"identifier: dimension {messages.Dimension.Name(dimension)} needs one")
    else:
        _add(facts, fact, identifier, "identifier")


def _add(facts: dict[str, str], fact: str, value: str, field: str = "") -> None:
    """Add a field to the facts. Raises `InvalidCheck` if the facts hold a different value."""
    if facts.setdefault(fact, value) != value:
        shown = "" if fact == "api_key" else f": {value!r} and {facts[fact]!r}"
        raise InvalidCheck(f"{field or fact}: differs from facts[{fact!r}]{shown}")
