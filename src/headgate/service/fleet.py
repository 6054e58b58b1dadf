"""Fleet: the state of all serving processes, shared through the database, and their decisions per second.

Each process writes its own row every two seconds, and reads the others' rows. While the database is down, it knows
only itself.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from headgate._version import __version__
from headgate.audit.usage import LIVE_SECONDS, Second
from headgate.core.quota import MICROSECONDS
from headgate.db.nodes import NodeRow, Nodes
from headgate.errors import DatabaseError
from headgate.operations.fleet import NodeStatus

if TYPE_CHECKING:
    from headgate.service.node import Node

REPORT_SECONDS: Final = 2.0
ROW_SECONDS: Final = 6  # of decisions in a row: more than the time between two rows
LATE_SECONDS: Final = 6.0  # after which a silent process counts as missing


class Fleet:
    """Reports this process's state, and reads the others'. Belongs to one event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._nodes = Nodes(node.database)
        self._id = f"{socket.gethostname()}:{os.getpid()}"
        self._started_us = node.limiter.clock.now_us()
        self._since_us: dict[str, int] = {}  # when each fault of this node was first seen
        self._others: dict[str, NodeRow] = {}
        self._seconds: dict[str, deque[Second]] = {}  # of the others, by id

    async def keep_reporting(self) -> None:
        """Report until cancelled."""
        try:
            while True:
                await self.report()
                await asyncio.sleep(REPORT_SECONDS)
        finally:
            await asyncio.shield(asyncio.to_thread(self._leave))

    async def report(self) -> None:
        """Write this process's state, and read the others'."""
        row = NodeRow(self._id, self._node.limiter.clock.now_us(), self._status())
        try:
            rows = await asyncio.to_thread(self._nodes.report, row)
        except DatabaseError:  # reported elsewhere
            return
        self._others = {one.id: one for one in rows if one.id != self._id}
        for gone in self._seconds.keys() - self._others.keys():
            del self._seconds[gone]
        for one in self._others.values():
            kept = self._seconds.setdefault(one.id, deque(maxlen=LIVE_SECONDS))
            last = kept[-1].at if kept else 0
            kept.extend(second for values in one.status["seconds"] if (second := Second(*values)).at > last)

    def nodes(self) -> list[NodeStatus]:
        """Return the state of all processes, by id."""
        now_us = self._node.limiter.clock.now_us()
        own = NodeRow(self._id, now_us, self._status())
        return [_status_of(row, now_us) for row in sorted([own, *self._others.values()])]

    def seconds(self, since: int = 0) -> list[Second]:
        """Return the decisions of all processes in each second after `since`, up to the last one that all live ones
        reported."""
        living = [
            self._seconds[one.id]
            for one in self._others.values()
            if self._node.limiter.clock.now_us() - one.at_us < LATE_SECONDS * MICROSECONDS and one.id in self._seconds
        ]
        known = min((kept[-1].at for kept in living if kept), default=1 << 62)
        own = [second for second in self._node.usage.seconds if since < second.at <= known]
        others = [second for kept in self._seconds.values() for second in kept if since < second.at <= known]
        return _add_seconds(own, others)

    def is_draining(self) -> bool:
        """Return whether this process is about to stop."""
        return self._node.is_draining()

    def _status(self) -> dict[str, Any]:
        faults = self._node.faults()
        now_us = self._node.limiter.clock.now_us()
        self._since_us = {name: self._since_us.get(name, now_us) for name in faults}
        return {
            "version": __version__,
            "started_us": self._started_us,
            "rules": self._node.rules_version(),
            "draining": self._node.is_draining(),
            "faults": {name: [text, self._since_us[name]] for name, text in faults.items()},
            "seconds": list(self._node.usage.seconds)[-ROW_SECONDS:],
        }

    def _leave(self) -> None:
        try:
            self._nodes.forget(self._id)
        except DatabaseError:
            return  # then others notice that it is missing


def _status_of(row: NodeRow, now_us: int) -> NodeStatus:
    status = row.status
    return NodeStatus(
        id=row.id,
        version=status["version"],
        started_us=status["started_us"],
        seen_us=row.at_us,
        missing=now_us - row.at_us > LATE_SECONDS * MICROSECONDS,
        rules=status["rules"],
        draining=status["draining"],
        faults={name: (text, since_us) for name, (text, since_us) in status["faults"].items()},
    )


def _add_seconds(own: Iterable[Second], others: Iterable[Second]) -> list[Second]:
    """Merge the seconds of several processes: add counts, and take the longest times."""
    found = {second.at: second for second in own}
    for second in others:
        mine = found.get(second.at)
        if mine is None:
            found[second.at] = second
        else:
            counts = (a + b for a, b in zip(mine[1:6], second[1:6], strict=True))
            times = (
                max((t for t in pair if t is not None), default=None) for pair in zip(mine[6:], second[6:], strict=True)
            )
            found[second.at] = Second(second.at, *counts, *times)
    return [found[at] for at in sorted(found)]
