"""IPv4 and IPv6 addresses and networks: parse addresses, and find out which networks contain them."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, Final, Literal

Network = IPv4Network | IPv6Network
Proxy = Network | Literal["unix"]  # unix: clients of a Unix socket, which have no address

_MAPPED: Final = bytes(10) + b"\xff\xff"  # the prefix of an IPv4 address written as IPv6


def network(value: Any) -> Network:
    """Parse an address or a network (`10.0.0.0/8`) as a network. Raises `ValueError`."""
    if isinstance(value, Network):
        return value
    text = value if isinstance(value, str) else ""  # a number would be read as an address
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


def pack_address(address: str) -> bytes | None:
    """Return the bytes of an address without its zone: always four for IPv4. None if it is not an address."""
    try:
        if ":" not in address:
            return inet_pton(AF_INET, address)
        found = inet_pton(AF_INET6, address.partition("%")[0])
    except (OSError, ValueError):  # ValueError: a NUL or a non-ASCII character
        return None
    return found[12:] if found.startswith(_MAPPED) else found


class Networks:
    """A set of networks. The time to look up an address does not depend on their number."""

    __slots__ = ("_prefixes",)

    def __init__(self, networks: Iterable[Network]) -> None:
        prefixes: dict[tuple[int, int], set[int]] = {}  # address length and bits to ignore: the remaining bits
        for covered in map(_unmap, networks):
            ignored = covered.max_prefixlen - covered.prefixlen
            prefixes.setdefault((covered.max_prefixlen, ignored), set()).add(int(covered.network_address) >> ignored)
        self._prefixes = tuple((*key, frozenset(found)) for key, found in prefixes.items())

    def __bool__(self) -> bool:
        return bool(self._prefixes)

    def cover(self, address: bytes) -> bool:
        """Return whether `address`, as `packed` returns it, is in one of the networks."""
        bits, number = 8 * len(address), int.from_bytes(address)
        return any(bits == length and number >> ignored in prefixes for length, ignored, prefixes in self._prefixes)


def _unmap(covered: Network) -> Network:
    """Return an IPv4 network written as IPv6 (`::ffff:10.0.0.0/104`) as IPv4."""
    if isinstance(covered, IPv6Network) and covered.prefixlen >= 96:
        mapped = covered.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((int(ip_address(mapped)), covered.prefixlen - 96))
    return covered
