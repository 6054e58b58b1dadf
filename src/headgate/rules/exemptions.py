"""Exemptions: who is never limited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from headgate.errors import InvalidRule, Problem
from headgate.rules import fields
from headgate.rules.networks import Network, Networks, network, packed

ExemptionType = Literal["ip", "user", "api_key", "tenant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemption:
    """Requests whose fact `type` is `value` are not limited: an `ip` address or network, or a user, api_key, tenant.

    Exemptions may overlap and repeat one another: one that covers a request is enough. Of a request whose `ip` stands
    for a group of addresses, the fact `address` is looked at instead.
    """

    type: ExemptionType
    value: str

    def __post_init__(self) -> None:
        where = f"exemption of {self.type} {self.value!r}"
        fields.checked(self, where, {"type": self.type, "value": self.value}, _CHECKS)
        if self.type == "ip":
            try:
                network(self.value)
            except ValueError as error:
                raise InvalidRule(Problem(where, "value", str(error))) from None


class Exempt:
    """Tells whether a request is exempt, in a time that does not depend on how many exemptions there are."""

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
        """Whether a request with these facts is exempt. An `ip` that is no address is not."""
        for fact, values in self._named:
            if facts.get(fact) in values:
                return True
        if self._networks and "ip" in facts:
            address = packed(facts["ip"])
            if address is None and "address" in facts:  # a group such as 2001:db8::/64, and who of it is asking
                address = packed(facts["address"])
            return address is not None and self._networks.cover(address)
        return False


_CHECKS: Final[dict[str, fields.Check]] = {
    "type": fields.choice(*get_args(ExemptionType)),
    "value": fields.name,
}
