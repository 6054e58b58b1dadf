"""Who goes with one call to a server, and who of them in one command. Pure; no I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from headgate.core.check import Group
from headgate.core.key import key
from headgate.core.quota import Quota
from headgate.stores.redis import script
from headgate.stores.redis.node import Parcel
from headgate.stores.redis.slots import slot_of_key


class Route(NamedTuple):
    """On a cluster: the slot of what is asked, and how."""

    slot: int
    asking: bool = False  # the server is about to take the slot over
    alone: bool = False  # not to be in one command with others


@lru_cache(maxsize=8_192)
def place_of(space: str, subject: str) -> tuple[Route, str]:
    """The route of a subject in a space, and its key."""
    name = key(space, subject)
    return Route(slot_of_key(name)), name


class Waiting(NamedTuple):
    """Groups that wait for a call to take them along; or a command."""

    groups: Sequence[Group]
    command: script.Command | None
    answer: asyncio.Future[Any]
    deadline: float  # on the event loop's clock
    route: Route | None = None
    size: int = 0  # groups that the command decides
    quota: Quota | None = None  # if it is known that it can go in one command with those of other slots under the same
    key: str = ""  # of the only check, if it is known


class Batch(NamedTuple):
    """Those who go with one call."""

    waiting: list[Waiting]
    size: int  # groups
    deadline: float  # the latest of theirs
    earliest: float
    alike: bool  # groups that go together as one command


class Load(NamedTuple):
    """Those who go together, as one command."""

    waiting: list[Waiting]
    groups: list[Group]
    mixed: bool = False  # they are of several slots

    def parcel(self, now_us: int | None) -> Parcel:
        first = self.waiting[0]
        if first.command is not None:
            return Parcel(first.command, bool(first.route and first.route.asking))
        if self.mixed:
            keys = [one.key or one.groups[0].checks[0].key for one in self.waiting]
            return Parcel(script.encode_mixed(self.groups, now_us, keys))
        return Parcel(script.encode(self.groups, now_us), bool(first.route and first.route.asking))


def loads_of(batch: Batch, *, mix: bool) -> list[Load]:
    """Who goes together: those of one slot; and with `mix` those of one quota, if nothing is special about them."""
    return [_load(batch.waiting)] if batch.alike else list(_loads(batch.waiting, mix=mix))


def _loads(batch: list[Waiting], *, mix: bool) -> Iterator[Load]:
    """Not those between whom a command of somebody's goes."""
    loads: dict[Route | int | None, list[Waiting]] = {}
    for waiting in batch:
        groups, command, _, _, route, *_ = waiting
        name: Route | int | None = route
        if command is not None or (route is not None and route.alone):
            yield from map(_load, loads.values())
            loads = {}
            yield _load([waiting])
            continue
        if mix and len(groups) == 1 and route is not None and not route.asking:
            quota = script.mixable(groups[0])
            if quota is not None:
                name = id(quota)
        if name in loads:
            loads[name].append(waiting)
        else:
            loads[name] = [waiting]
    yield from map(_load, loads.values())


def _load(waiting: list[Waiting]) -> Load:
    first = waiting[0].route
    groups = [group for one in waiting for group in one.groups]
    return Load(waiting, groups, any(one.route is not first and one.route != first for one in waiting))
