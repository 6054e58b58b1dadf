"""Who goes with one call to a server, and who of them in one command. Pure; no I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from headgate.core.check import Check, Group
from headgate.core.key import escape, key
from headgate.core.quota import Quota
from headgate.stores.redis import script
from headgate.stores.redis.parcel import Parcel
from headgate.stores.redis.slots import slot_of_tag

NO_SLOT: Final = -1  # where slots do not matter

Place = Callable[[str], tuple[int, str]]


def places_of(space: str) -> Place:
    """What tells the slot of a subject in a space, and its key. Told anew each time: most subjects come seldom."""
    head, tail = space.split("*", 1)
    rest = tail[: tail.index("}")]  # of the hash tag: that of a shard

    def place(subject: str) -> tuple[int, str]:
        tag = escape(subject)
        return slot_of_tag(tag + rest), head + tag + tail

    return place


def anywhere(space: str) -> Place:
    """`places_of` where slots do not matter."""
    return lambda subject: (0, key(space, subject))


class Waiting(NamedTuple):
    """Somebody who waits for a call: with groups, with a command, or with a single plain check, enforced."""

    groups: Sequence[Group]
    command: script.Command | None
    answer: asyncio.Future[Any]
    deadline: float  # by the process clock
    since: float  # it waits, by the same
    slot: int = NO_SLOT  # on a cluster
    size: int = 0  # groups that the command decides; 1: the check
    quota: Quota | None = None  # the check's; None: it is no check
    key: str = ""  # the check's, without the store's prefix
    cost: int = 0
    asking: bool = False  # the server is about to take the slot over
    alone: bool = False  # not to be in one command with others

    def as_groups(self) -> Sequence[Group]:
        """The groups; the check as one of them. All that is known of where it is is its key."""
        return self.groups if self.quota is None else (Group((Check("", self.key, "", self.quota, self.cost),)),)


class Batch(NamedTuple):
    """Those who go with one call."""

    waiting: list[Waiting]
    size: int  # groups
    quota: Quota | None  # all are checks under this one, and go together; None: they are, or do, not


class Load(NamedTuple):
    """Those who go together, as one command. On a cluster, all are of one slot: a script touches declared keys only."""

    waiting: list[Waiting]
    quota: Quota | None  # all are checks under it
    groups: list[Group]  # if not

    def parcel(self, now_us: int | None, prefix: str) -> Parcel:
        first = self.waiting[0]
        asking = first.asking
        if first.command is not None:
            return Parcel(first.command, asking)
        if self.quota is not None:
            keys, costs = [one.key for one in self.waiting], [one.cost for one in self.waiting]
            return Parcel(script.encode_checks(self.quota, keys, costs, now_us, prefix), asking)
        return Parcel(script.encode(self.groups, now_us, prefix), asking)


def loads_of(batch: Batch) -> list[Load]:
    """Return who goes together: those of one slot."""
    if batch.quota is not None:
        return [_load(batch.waiting, batch.quota)]
    return [_load(waiting, _shared(waiting)) for waiting in _together(batch.waiting)]


def _together(batch: list[Waiting]) -> Iterator[list[Waiting]]:
    """Never merge checks across an intervening command."""
    loads: dict[tuple[int, bool], list[Waiting]] = {}  # by slot
    for waiting in batch:
        if waiting.command is not None or waiting.alone:
            yield from loads.values()
            loads = {}
            yield [waiting]
            continue
        loads.setdefault((waiting.slot, waiting.asking), []).append(waiting)
    yield from loads.values()


def _shared(waiting: list[Waiting]) -> Quota | None:
    """The quota of those who all wait for a single check under it; else None."""
    quota = waiting[0].quota
    return quota if all(one.quota is quota for one in waiting) else None


def _load(waiting: list[Waiting], quota: Quota | None) -> Load:
    groups = [] if quota is not None else [group for one in waiting for group in one.as_groups()]
    return Load(waiting, quota, groups)
