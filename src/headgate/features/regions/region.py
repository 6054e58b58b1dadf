"""Region: this region, the other regions, and how often they exchange data; and the state of what they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from headgate.stores.protocol import AsyncStore, Store
from headgate.stores.urls import REDIS, SCHEMES

FAR_TIMEOUT: Final = 1.0  # seconds for calls to other regions, unless their URL sets a timeout
MAX_WEIGHT: Final = 1_000_000
MAX_FLOOR: Final = 0.5
INTERVALS: Final = (0.1, 60.0)


@dataclass(frozen=True, slots=True)
class Member:
    """One of the regions. `store` is the URL of its store; our own region uses the limiter's store instead."""

    name: str
    store: str | Store | AsyncStore | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True, init=False)
class Region:
    """This region among `members`. All regions list the same members and weights, in any order.

    `central` names the region that keeps the state of rules with `regions = "central"`, and the pages for shares; by
    default, it is the first member by name. Counts are exchanged, and shares recomputed, every `interval` seconds. A
    granted share lasts for `term` seconds. `floor` is the largest part of a limit that the floors of all others
    together take from one region. Raises `ValueError`, which names the field and the value.
    """

    name: str
    members: tuple[Member, ...]
    central: str
    interval: float
    term: float
    floor: float

    def __init__(
        self,
        name: str,
        members: Iterable[Member],
        *,
        central: str | None = None,
        interval: float = 1.0,
        term: float | None = None,
        floor: float = 0.05,
    ) -> None:
        members = tuple(sorted(members, key=lambda member: member.name))
        names = [member.name for member in members]
        term = 3.0 * interval if term is None else term
        _check(name, members, names, central)
        low, high = INTERVALS
        if not low <= interval <= high:
            raise ValueError(f"interval: must be from {low} to {high:g} seconds, got {interval!r}")
        if not 2 * interval <= term <= 10 * high:
            raise ValueError(f"term: must be at least twice the interval ({interval:g} s), got {term!r}")
        if not 0 <= floor <= MAX_FLOOR:
            raise ValueError(f"floor: must be from 0 to {MAX_FLOOR}, got {floor!r}")
        for attribute, value in (
            ("name", name),
            ("members", members),
            ("central", names[0] if central is None else central),
            ("interval", float(interval)),
            ("term", float(term)),
            ("floor", float(floor)),
        ):
            object.__setattr__(self, attribute, value)

    @property
    def weights(self) -> Mapping[str, int]:
        return {member.name: member.weight for member in self.members}

    @property
    def others(self) -> Mapping[str, str | Store | AsyncStore]:
        """The stores of the other regions. URLs without a timeout get a longer one."""
        return {
            member.name: _patient(member.store) if isinstance(member.store, str) else member.store
            for member in self.members
            if member.name != self.name and member.store is not None
        }


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """The state of the link to another region."""

    calls: int = 0  # answered calls of any kind
    failures: int = 0  # calls that failed
    age: float | None = None  # seconds since its counts were last read; None: they are not exchanged
    cut: bool = False  # its counts are so old that this region keeps to its own share


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """The state of the rules that several regions share. Units are units of cost; keys are those of this node."""

    region: str = ""  # the name of this region
    peers: Mapping[str, PeerStatus] = field(default_factory=dict)
    fallbacks: int = 0  # requests partly decided by a failure mode because the central region was down
    grants: int = 0  # keys for which this region has a granted share
    grant_failures: int = 0  # failed attempts to agree on shares
    synced_keys: int = 0  # keys whose counts are exchanged
    synced_bound: int = 0  # the most that others admitted of one key between two exchanges: the possible excess
    synced_excess: int = 0  # units admitted above limits, in all regions together, since the start


def _check(name: str, members: tuple[Member, ...], names: list[str], central: str | None) -> None:
    known = ", ".join(map(repr, names))
    if name not in names:
        raise ValueError(f"name: {name!r} is not one of the members ({known or 'there are none'})")
    for member in members:
        if not isinstance(member.name, str) or not member.name or not member.name.isprintable():
            raise ValueError(f"members: name: must be a non-empty string, got {member.name!r}")
        weight = member.weight
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MAX_WEIGHT:
            expected = f"must be a whole number from 1 to {MAX_WEIGHT}"
            raise ValueError(f"members: {member.name!r}: weight: {expected}, got {weight!r}")
        if member.store is None and member.name != name:
            raise ValueError(f"members: {member.name!r}: store: is missing; only that of our own region may be")
        if isinstance(member.store, str) and urlsplit(member.store).scheme not in SCHEMES:
            raise ValueError(f"members: {member.name!r}: store: must be a URL with {'://, '.join(SCHEMES)}://")
    if len(set(names)) != len(names):
        twice = next(one for one in names if names.count(one) > 1)
        raise ValueError(f"members: {twice!r} is listed twice")
    if central is not None and central not in names:
        raise ValueError(f"central: {central!r} is not one of the members ({known})")


def _patient(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in REDIS or any(option == "timeout" for option, _ in parse_qsl(parts.query)):
        return url
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("timeout", FAR_TIMEOUT)])
    return f"{parts.scheme}://{parts.netloc}{parts.path}?{query}"
