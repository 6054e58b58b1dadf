"""Exemptions: requests that are never limited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from headgate.errors import InvalidRule, Problem
from headgate.rules import fields
from headgate.rules.networks import Network, Networks, network, pack_address

ExemptionType = Literal["ip", "user", "api_key", "tenant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemption:
    """An exemption of requests whose fact `type` is `value`: an `ip` address or network, a user, api_key or tenant.

    Exemptions may overlap: one that covers a request is enough. If a request's `ip` stands for a group of addresses,
    the fact `address` is compared instead.
    """

    type: ExemptionType
    value: str

    def __post_init__(self) -> None:
        where = f"exemption of {self.type} {self.value!r}"
        fields.set_checked(self, where, {"type": self.type, "value": self.value}, _CHECKS)
        if self.type == "ip":
            try:
                network(self.value)
            except ValueError as error:
                raise InvalidRule(Problem(where, "value", str(error))) from None


class Exempt:
    """An index of exemptions. The time of a look-up does not depend on their number."""

    def __init__(self, exemptions: Iterable[Exemption]) -> None:
        named: dict[str, set[str]] = {}
        networks: list[Network] = []
        for exemption in exemptions:
            if exemption.type == "ip":
                networks.append(network(exemption.value))
            else:
                named.setdefault(exemption.type, set()).add(exemption.value)
        self._named = tuple((fact, frozenset(values)) for fact, values in named.items())
        self._networks = Networks(networks)

    def covers(self, facts: Mapping[str, str]) -> bool:
        """Return whether a request with these facts is exempt. An `ip` that is not an address is not exempt."""
        for fact, values in self._named:
            if facts.get(fact) in values:
                return True
        if self._networks and "ip" in facts:
            address = pack_address(facts["ip"])
            if address is None and "address" in facts:  # ip is a group such as 2001:db8::/64; use the client's address
                address = pack_address(facts["address"])
            return address is not None and self._networks.cover(address)
        return False


_CHECKS: Final[dict[str, fields.Check]] = {"type": fields.choice(*get_args(ExemptionType)), "value": fields.name}
