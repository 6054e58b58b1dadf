"""Addresses and networks of IPv4 and IPv6: what is an address, and which networks cover it."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, Final, Literal

Network = IPv4Network | IPv6Network
Proxy = Network | Literal["unix"]  # unix: clients of a unix socket, which have no address

_MAPPED: Final = bytes(10) + b"\xff\xff"  # what an IPv4 address written as IPv6 begins with


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


def proxy(value: Any) -> Proxy:
    """Parse a proxy's network, or `"unix"`. Raises `ValueError`."""
    return "unix" if value == "unix" else network(value)


def packed(address: str) -> bytes | None:
    """The bytes of an address, without zone; IPv4 in four bytes, however it was written. None: no address."""
    try:
        if ":" not in address:
            return inet_pton(AF_INET, address)
        found = inet_pton(AF_INET6, address.partition("%")[0])
    except (OSError, ValueError):  # ValueError: a NUL, or a character that is no ASCII
        return None
    return found[12:] if found.startswith(_MAPPED) else found


class Networks:
    """Tells whether an address is in any of them, in a time that does not depend on how many there are."""

    __slots__ = ("_prefixes",)

    def __init__(self, networks: Iterable[Network]) -> None:
        prefixes: dict[tuple[int, int], set[int]] = {}  # address length and bits to ignore: the remaining bits
        for covered in map(_unmapped, networks):
            ignored = covered.max_prefixlen - covered.prefixlen
            prefixes.setdefault((covered.max_prefixlen, ignored), set()).add(int(covered.network_address) >> ignored)
        self._prefixes = tuple((*key, frozenset(found)) for key, found in prefixes.items())

    def __bool__(self) -> bool:
        return bool(self._prefixes)

    def cover(self, address: bytes) -> bool:
        """Whether `address`, as `packed` gives it, is in one of the networks."""
        bits, number = 8 * len(address), int.from_bytes(address)
        return any(bits == length and number >> ignored in prefixes for length, ignored, prefixes in self._prefixes)


def _unmapped(covered: Network) -> Network:
    """An IPv4 network that was written as IPv6 (`::ffff:10.0.0.0/104`) as IPv4."""
    if isinstance(covered, IPv6Network) and covered.prefixlen >= 96:
        mapped = covered.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((int(ip_address(mapped)), covered.prefixlen - 96))
    return covered
