"""Who goes with one call to a server, and who of them in one command. Pure; no I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from headgate.core.check import Check, Group
from headgate.core.key import escape, key
from headgate.core.quota import Quota
from headgate.stores.redis import script
from headgate.stores.redis.node import Parcel
from headgate.stores.redis.slots import slot_of_tag


class Route(NamedTuple):
    """On a cluster: the slot of what is asked, and how."""

    slot: int
    asking: bool = False  # the server is about to take the slot over
    alone: bool = False  # not to be in one command with others


Place = Callable[[str], tuple[Route, str]]
_route: Final = cache(Route)  # of each slot the same


def places_of(space: str) -> Place:
    """What tells the route of a subject in a space, and its key. Told anew each time: most subjects come seldom."""
    head, tail = space.split("*", 1)
    rest = tail[: tail.index("}")]  # of the hash tag: that of a shard

    def place(subject: str) -> tuple[Route, str]:
        tag = escape(subject)
        return _route(slot_of_tag(tag + rest)), head + tag + tail

    return place


def anywhere(space: str) -> Place:
    """`places_of` where slots do not matter."""
    route = _route(0)
    return lambda subject: (route, key(space, subject))


class Waiting(NamedTuple):
    """Somebody who waits for a call: with groups, with a command, or with a single plain check, enforced."""

    groups: Sequence[Group]
    command: script.Command | None
    answer: asyncio.Future[Any]
    deadline: float  # on the event loop's clock
    route: Route | None = None
    size: int = 0  # groups that the command decides; 1: the check
    quota: Quota | None = None  # the check's; None: it is no check
    key: str = ""
    cost: int = 0

    def as_groups(self) -> Sequence[Group]:
        """The groups; the check as one of them. All that is known of where it is is its key."""
        return self.groups if self.quota is None else (Group((Check("", self.key, "", self.quota, self.cost),)),)


class Batch(NamedTuple):
    """Those who go with one call."""

    waiting: list[Waiting]
    size: int  # groups
    deadline: float  # the latest of theirs
    earliest: float
    quota: Quota | None  # all are checks under this one, and go together; None: they are, or do, not


class Load(NamedTuple):
    """Those who go together, as one command."""

    waiting: list[Waiting]
    quota: Quota | None  # all are checks under it
    groups: list[Group]  # if not
    mixed: bool = False  # they are of several slots

    def parcel(self, now_us: int | None) -> Parcel:
        first = self.waiting[0]
        asking = first.route is not None and first.route.asking
        if first.command is not None:
            return Parcel(first.command, asking)
        if self.quota is not None:
            keys, costs = [one.key for one in self.waiting], [one.cost for one in self.waiting]
            return Parcel(script.encode_checks(self.quota, keys, costs, now_us, mixed=self.mixed), asking)
        if self.mixed:
            return Parcel(script.encode_mixed(self.groups, now_us))
        return Parcel(script.encode(self.groups, now_us), asking)


def loads_of(batch: Batch, *, mix: bool) -> list[Load]:
    """Who goes together: those of one slot; and with `mix` those of one quota, if nothing is special about them."""
    if batch.quota is not None:
        return [_load(batch.waiting, batch.quota)]
    return [_load(waiting, _shared(waiting)) for waiting in _together(batch.waiting, mix=mix)]


def _together(batch: list[Waiting], *, mix: bool) -> Iterator[list[Waiting]]:
    """Not those between whom a command of somebody's goes."""
    loads: dict[Route | int | None, list[Waiting]] = {}
    for waiting in batch:
        route = waiting.route
        name: Route | int | None = route
        if waiting.command is not None or (route is not None and route.alone):
            yield from loads.values()
            loads = {}
            yield [waiting]
            continue
        if mix and route is not None and not route.asking:
            quota = _mixable(waiting)
            if quota is not None:
                name = id(quota)
        if name in loads:
            loads[name].append(waiting)
        else:
            loads[name] = [waiting]
    yield from loads.values()


def _mixable(waiting: Waiting) -> Quota | None:
    """By which quota somebody can go in one command with those of other slots; else None."""
    if waiting.quota is not None:
        return waiting.quota if waiting.quota.algorithm in script.MIXED else None
    return script.mixable(waiting.groups[0]) if len(waiting.groups) == 1 else None


def _shared(waiting: list[Waiting]) -> Quota | None:
    """The quota of those who all wait for a single check under it; else None."""
    quota = waiting[0].quota
    return quota if all(one.quota is quota for one in waiting) else None


def _load(waiting: list[Waiting], quota: Quota | None) -> Load:
    first = waiting[0].route
    mixed = any(one.route is not first and one.route != first for one in waiting)
    groups = [] if quota is not None else [group for one in waiting for group in one.as_groups()]
    return Load(waiting, quota, groups, mixed)
