"""Exemptions: who is never limited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, Final, Literal, get_args

from headgate.errors import InvalidRule, Problem
from headgate.rules import fields

ExemptionType = Literal["ip", "user", "api_key", "tenant"]
Network = IPv4Network | IPv6Network

_MAPPED: Final = bytes(10) + b"\xff\xff"  # what an IPv4 address written as IPv6 begins with


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemption:
    """Requests whose fact `type` is `value` are not limited: an `ip` address or network, or a user, api_key, tenant.

    Exemptions may overlap and repeat one another: one that covers a request is enough.
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


def network(value: Any) -> Network:
    """An address or a network (`10.0.0.0/8`) as a network. Raises `ValueError`."""
    if isinstance(value, Network):
        return value
    text = value if isinstance(value, str) else ""  # a number would be taken for an address
    try:
        return ip_network(text)
    except ValueError:
        pass
    try:
        meant = ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"must be an address or a network like '10.0.0.0/8', got {value!r}") from None
    raise ValueError(f"{value!r} is an address inside a network: write {str(meant)!r} or {text.split('/')[0]!r}")


class Exempt:
    """Tells whether a request is exempt, in a time that does not depend on how many exemptions there are."""

    def __init__(self, exemptions: Iterable[Exemption]) -> None:
        named: dict[str, set[str]] = {}
        networks: dict[tuple[int, int], set[int]] = {}  # address length and bits to ignore: the remaining bits
        for exemption in exemptions:
            if exemption.type == "ip":
                covered = _unmapped(network(exemption.value))
                ignored = covered.max_prefixlen - covered.prefixlen
                prefixes = networks.setdefault((covered.max_prefixlen, ignored), set())
                prefixes.add(int(covered.network_address) >> ignored)
            else:
                named.setdefault(exemption.type, set()).add(exemption.value)
        self._named = tuple((fact, frozenset(values)) for fact, values in named.items())
        self._networks = tuple((*key, frozenset(prefixes)) for key, prefixes in networks.items())

    def covers(self, facts: Mapping[str, str]) -> bool:
        """Whether a request with these facts is exempt. An `ip` that is no address is not."""
        for fact, values in self._named:
            if facts.get(fact) in values:
                return True
        if self._networks and "ip" in facts:
            address = _packed(facts["ip"])
            if address is not None:
                bits, number = 8 * len(address), int.from_bytes(address)
                return any(
                    bits == length and number >> ignored in prefixes for length, ignored, prefixes in self._networks
                )
        return False


def _packed(address: str) -> bytes | None:
    """The bytes of an address, without zone; IPv4 in four bytes, however it was written."""
    try:
        if ":" not in address:
            return inet_pton(AF_INET, address)
        packed = inet_pton(AF_INET6, address.partition("%")[0])
    except (OSError, ValueError):  # ValueError: a NUL, or a character that is no ASCII
        return None
    return packed[12:] if packed.startswith(_MAPPED) else packed


def _unmapped(covered: Network) -> Network:
    """An IPv4 network that was written as IPv6 (`::ffff:10.0.0.0/104`) as IPv4."""
    if isinstance(covered, IPv6Network) and covered.prefixlen >= 96:
        mapped = covered.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((int(ip_address(mapped)), covered.prefixlen - 96))
    return covered


_CHECKS: Final[dict[str, fields.Check]] = {
    "type": fields.choice(*get_args(ExemptionType)),
    "value": fields.name,
}
