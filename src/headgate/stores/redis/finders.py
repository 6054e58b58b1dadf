"""Find the servers that serve a store's keys: the master that Sentinels name, or each server of a cluster.

A finder is used by one thread at a time. `find` asks now and waits for the answers. Connections to Sentinels stay open
between calls, and receive announcements of failovers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from time import monotonic
from typing import Any, Final, Protocol

from headgate.errors import StoreUnavailable
from headgate.stores.redis import script
from headgate.stores.redis.connection import ThreadConnection
from headgate.stores.redis.faults import FAULTS, Address, Owners
from headgate.stores.redis.options import StoreTarget
from headgate.stores.redis.sentinel import Candidates, NoMaster, SentinelReport
from headgate.stores.redis.sentinel_link import SentinelLink
from headgate.stores.redis.topology import SLOTS

PATIENCE: Final = (0.1, 0.5)  # bounds of the seconds for one server's answer; else a check's timeout
EVERY_SECONDS: Final = 1.0  # between queries of Sentinels that announced nothing
SOON_SECONDS: Final = 0.05  # between queries during a failover

_ROLE: Final = script.encode_command(("ROLE",))
_TROUBLE: Final = (*FAULTS, LookupError, TypeError, ValueError)  # the last three: an invalid answer


class ServerFinder(Protocol):
    """The interface of both finders."""

    every: float | None  # seconds until the next periodic discovery; None: never

    def find(self) -> Owners:
        """Return the owners of slots; a master owns the only one. Raises `StoreUnavailable`."""

    def listening(self) -> Sequence[SentinelLink]:
        """Return the connections that receive announcements."""

    def hear(self) -> bool:
        """Return whether a change was announced since the last call. Does not wait."""

    def close(self) -> None:
        """Close all connections. `find` opens others."""


def finder_of(target: StoreTarget, known: Callable[[], list[Address]] = list) -> ServerFinder:
    """Return a finder for a URL's servers. `known` returns servers of a cluster to ask besides the URL's."""
    return SentinelFinder(target) if target.topology == "sentinel" else ClusterFinder(target, known)


def patience_of(target: StoreTarget) -> float:
    return min(max(PATIENCE[0], target.options.timeout), PATIENCE[1])


class SentinelFinder:
    """Finds the master: the server that the Sentinels name, if its own role is master."""

    def __init__(self, target: StoreTarget) -> None:
        assert target.seed_params is not None
        self.every: float | None = EVERY_SECONDS
        self._target = target
        self._patience = patience_of(target)
        params, service = target.seed_params, target.service
        self._links = [SentinelLink(params.to(address), service, self._patience) for address in target.seeds]
        self._candidates = Candidates()
        self._servers: dict[Address, ThreadConnection] = {}  # candidates, to ask for their role

    def find(self) -> Owners:
        reports = self._reports()
        failing_over = any(report.promoted is not None for report in reports)
        self.every = SOON_SECONDS if failing_over else EVERY_SECONDS
        candidates = self._candidates.rank(reports, monotonic())
        if not candidates:
            raise StoreUnavailable("the Sentinels that answer do not know about the last failover yet", sent=False)
        for address in set(self._servers) - set(candidates):
            self._servers.pop(address).close()
        problems = []
        for address in candidates:
            role = self._role(address)
            if role == "master":
                return [(1, address)]
            problems.append(f"{address[0]}:{address[1]} is not a master: {role}")
        raise NoMaster(f"no master of {self._target.service!r} was found: {'; '.join(problems)}", candidates)

    def listening(self) -> Sequence[SentinelLink]:
        return [link for link in self._links if link.is_open]

    def hear(self) -> bool:
        announced = False
        for link in self.listening():
            try:
                announced = link.hear() or announced
            except _TROUBLE:
                link.drop()
        return announced

    def close(self) -> None:
        for link in self._links:
            link.close()
        for connection in self._servers.values():
            connection.close()
        self._servers.clear()

    def _reports(self) -> list[SentinelReport]:
        """Ask all Sentinels at the same time."""
        problems: list[str] = []

        def drop(link: SentinelLink, error: Exception) -> None:
            problems.append(f"Sentinel at {link.name}: {error}")
            link.drop()

        self._connect(drop)
        queried, reports = [], []
        for link in self.listening():
            try:
                link.ask()
                queried.append(link)
            except _TROUBLE as error:
                drop(link, error)
        deadline = monotonic() + self._patience
        for link in queried:
            try:
                reports.append(link.answer(deadline))
            except _TROUBLE as error:
                drop(link, error)
        if not reports:
            raise StoreUnavailable(
                f"no Sentinel has named the master of {self._target.service!r}: {'; '.join(problems)}", sent=False
            )
        return reports

    def _connect(self, drop: Callable[[SentinelLink, Exception], None]) -> None:
        """Connect to Sentinels that were not tried recently; to all, if no connection is open."""
        alone = not self.listening()
        for link in self._links:
            if not link.is_open and (alone or monotonic() >= link.retry_at):
                try:
                    link.open()
                except _TROUBLE as error:
                    drop(link, error)

    def _role(self, address: Address) -> str:
        """Return the role that a server reports, or why it does not."""
        connection = self._servers.pop(address, None)
        try:
            if connection is not None and not connection.is_good():
                connection.close()
                connection = None
            if connection is None:
                connection = ThreadConnection(
                    self._target.params.to(address), self._patience, monotonic() + self._patience
                )
            role: str = connection.ask(_ROLE, monotonic() + self._patience)[0].decode()
        except _TROUBLE as error:
            if connection is not None:
                connection.close()
            return str(error)
        self._servers[address] = connection
        return role


class ClusterFinder:
    """Finds the owners of all slots, according to the first server that answers.

    Changes need no announcement: a server answers `MOVED` when it no longer owns a slot.
    """

    every: float | None = None

    def __init__(self, target: StoreTarget, known: Callable[[], list[Address]]) -> None:
        self._target = target
        self._known = known
        self._patience = patience_of(target)

    def find(self) -> Owners:
        problems = []
        for address in dict.fromkeys((*self._known(), *self._target.seeds)):
            try:
                connection = ThreadConnection(
                    self._target.params.to(address), self._patience, monotonic() + self._patience
                )
                try:
                    answer = connection.ask(script.encode_command(("CLUSTER", "SLOTS")), monotonic() + self._patience)
                finally:
                    connection.close()
                return read_slots(answer, address[0])
            except _TROUBLE as error:
                problems.append(f"{address[0]}:{address[1]}: {error}")
        raise StoreUnavailable(f"no node of the cluster reported its slots: {'; '.join(problems)}", sent=False)

    def listening(self) -> Sequence[SentinelLink]:
        return ()

    def hear(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: no connection stays open."""


def read_slots(answer: list[Any], host: str) -> Owners:
    """Read the reply to `CLUSTER SLOTS` of the server at `host`. Raises `ValueError`."""
    found: list[tuple[int, Address | None]] = []
    at = 0
    for first, last, (name, port, *_), *_ in sorted(answer, key=itemgetter(0)):
        if first > at:
            found.append((first - at, None))
        found.append((last + 1 - first, (name.decode() if name else host, port)))
        at = last + 1
    if not found:
        raise ValueError("it reported no slots")
    found.append((SLOTS - at, None))
    anybody = next(owner for _, owner in found if owner is not None)  # it will report the error
    return [(count, owner or anybody) for count, owner in found if count]
