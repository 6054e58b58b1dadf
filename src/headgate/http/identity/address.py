"""The address that a request came from, found through trusted proxies."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final, NamedTuple

from headgate.http.identity.forwarded import HOPS
from headgate.http.request import Request
from headgate.rules.networks import Networks, Proxy, pack_address
from headgate.rules.snapshot import Snapshot

log = logging.getLogger("headgate")

REMEMBERED: Final = 4_096  # addresses
MAX_HOP: Final = 128  # characters: longer strings are not addresses
NOWHERE: Final = "unix"  # the fact `ip` of a peer that has no address

_PORT: Final = re.compile(r":(?:[0-9]{1,5}|_[A-Za-z0-9._-]+)").fullmatch  # RFC 7239 allows an obfuscated port: _x


class Seen(NamedTuple):
    """The facts of one address, and whether it is trusted."""

    facts: dict[str, str]  # shared: copied before it is returned
    trusted: bool
    is_address: bool = True


class Trust:
    """The trusted proxies, and a cache of recent addresses."""

    def __init__(self, proxies: Sequence[Proxy], depth: int, ipv6_prefix: int) -> None:
        self.proxies = tuple(proxies)
        self.depth = depth
        self._networks = Networks(proxy for proxy in proxies if proxy != "unix")
        self._prefix = ipv6_prefix
        self.recent: dict[str | None, Seen] = {}
        self._nowhere = Seen({"ip": NOWHERE}, "unix" in proxies)
        self._warned = False

    def see(self, address: str | None) -> Seen:
        """Return what is known of an address as a server or proxy wrote it: with or without port, brackets and zone."""
        if not address:
            return self._see_nowhere()
        seen = self.recent.get(address)
        if seen is None:
            seen = self._look(address)
            if len(address) <= MAX_HOP:
                if len(self.recent) >= REMEMBERED:
                    self.recent = {}
                self.recent[address] = seen
        return seen

    def _see_nowhere(self) -> Seen:
        if not self._nowhere.trusted and not self._warned:
            self._warned = True
            log.warning(
                "identity: requests come from a peer without an address: all of them count as one client, ip %r. "
                "If it is a proxy on a unix socket, add 'unix' to trusted_proxies",
                NOWHERE,
            )
        return self._nowhere

    def _look(self, address: str) -> Seen:
        host = _host(address) if len(address) <= MAX_HOP else None
        number = None if host is None else pack_address(host)
        if number is None:
            return Seen({"ip": address}, trusted=False, is_address=False)
        trusted = self._networks.cover(number)
        if len(number) == 4:
            return Seen({"ip": str(IPv4Address(number))}, trusted)
        exact = str(IPv6Address(number))
        if self._prefix == 128:
            return Seen({"ip": exact}, trusted)
        group = IPv6Network((number, self._prefix), strict=False)
        return Seen({"ip": str(group), "address": exact}, trusted)


class ClientFinder:
    """Finds a request's client address. It takes the trusted proxies from the snapshot, unless they are configured."""

    def __init__(self, proxies: Sequence[Proxy] | None, depth: int | None, proxy_header: str, ipv6_prefix: int) -> None:
        self._proxies = proxies
        self._depth = depth
        self._header = proxy_header
        self._hops = HOPS[proxy_header]
        self._prefix = ipv6_prefix
        self._followed: tuple[Snapshot | None, Trust] = (None, self._trust(None))  # replaced in one step

    def find(
        self, request: Request, snapshot: Snapshot | None, *, vouched: bool = False
    ) -> tuple[dict[str, str], bool]:
        """Return the facts `ip` and, if that is a network, `address`; and whether the peer is a trusted proxy.

        A peer that is `vouched` for is trusted, whatever its address.

        Walks through the hops from the last to the first, as long as the proxy that wrote the hop is trusted, and at
        most `trusted_proxy_depth` of them. A hop that is not an address ends the walk.
        """
        followed, trust = self._followed
        if snapshot is not followed:
            trust = self._follow(snapshot, trust)
        address = request.peer
        peer = client = trust.recent.get(address) or trust.see(address)
        if not peer.trusted and not vouched:
            return client.facts.copy(), False
        header = request.header(self._header)
        if header is not None:
            for hop in self._hops(header, trust.depth):
                seen = trust.see(hop) if hop else None
                if seen is None or not seen.is_address:
                    break
                client = seen
                if not client.trusted:
                    break
        return client.facts.copy(), True

    def trusts(self, snapshot: Snapshot | None) -> bool:
        """Return whether any proxy is trusted."""
        followed, trust = self._followed
        if snapshot is not followed:
            trust = self._follow(snapshot, trust)
        return bool(trust.proxies)

    def _follow(self, snapshot: Snapshot | None, before: Trust) -> Trust:
        trust = self._trust(snapshot)
        if (trust.proxies, trust.depth) == (before.proxies, before.depth):
            trust = before  # keep its cache
        self._followed = (snapshot, trust)
        return trust

    def _trust(self, snapshot: Snapshot | None) -> Trust:
        proxies, depth = self._proxies, self._depth
        if proxies is None:
            proxies = () if snapshot is None else snapshot.trusted_proxies
        if depth is None:
            depth = 1 if snapshot is None else snapshot.trusted_proxy_depth
        return Trust(proxies, depth, self._prefix)


def _host(address: str) -> str | None:
    """Strip port and brackets from an address. Return None if it is malformed."""
    if address.startswith("["):
        host, closed, port = address[1:].partition("]")
        return host if closed and ":" in host and (not port or _PORT(port)) else None
    if address.count(":") == 1:
        host, _, port = address.partition(":")
        return host if _PORT(":" + port) else None
    return address
