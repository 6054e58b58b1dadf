"""Who goes with one call to a server, and who of them in one command. Pure; no I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from headgate.core.check import Group
from headgate.stores.redis import script
from headgate.stores.redis.parcel import Parcel
from headgate.stores.redis.template import CommandTemplate

NO_SLOT: Final = -1  # where slots do not matter


class Waiting(NamedTuple):
    """Somebody who waits for a call: with groups, with a command, or with a request that has a template."""

    groups: Sequence[Group]
    command: script.Command | None
    answer: asyncio.Future[Any]
    deadline: float  # by the process clock
    since: float  # it waits, by the same
    slot: int = NO_SLOT  # on a cluster
    size: int = 0  # groups that the command decides; 1: the request
    template: CommandTemplate | None = None  # the request's; None: it is no such request
    keys: tuple[str, ...] = ()  # the request's, without the store's prefix
    costs: tuple[int, ...] = ()
    asking: bool = False  # the server is about to take the slot over
    alone: bool = False  # not to be in one command with others


class Batch(NamedTuple):
    """Those who go with one call."""

    waiting: list[Waiting]
    size: int  # groups
    template: CommandTemplate | None  # all are requests of this one, and go together; None: they are, or do, not


class Load(NamedTuple):
    """Those who go together, as one command. On a cluster, all are of one slot: a script touches declared keys only."""

    waiting: list[Waiting]
    template: CommandTemplate | None  # of all requests
    groups: list[Group]  # if there is none

    def parcel(self, now_us: int | None, prefix: str) -> Parcel:
        first = self.waiting[0]
        asking = first.asking
        if first.command is not None:
            return Parcel(first.command, asking)
        if self.template is not None:
            requests = [(one.keys, one.costs) for one in self.waiting]
            return Parcel(self.template.command(requests, now_us, prefix), asking)
        return Parcel(script.encode(self.groups, now_us, prefix), asking)


def loads_of(batch: Batch) -> list[Load]:
    """Return who goes together: those of one slot who have the same template, or none."""
    if batch.template is not None:
        return [_load(batch.waiting)]
    return [_load(waiting) for waiting in _together(batch.waiting)]


def _together(batch: list[Waiting]) -> Iterator[list[Waiting]]:
    """Never merge checks across an intervening command."""
    loads: dict[tuple[int, bool, int], list[Waiting]] = {}  # by slot and template
    for waiting in batch:
        if waiting.command is not None or waiting.alone:
            yield from loads.values()
            loads = {}
            yield [waiting]
            continue
        template = 0 if waiting.template is None else id(waiting.template)
        loads.setdefault((waiting.slot, waiting.asking, template), []).append(waiting)
    yield from loads.values()


def _load(waiting: list[Waiting]) -> Load:
    template = waiting[0].template
    groups = [] if template is not None else [group for one in waiting for group in one.groups]
    return Load(waiting, template, groups)
