"""Topology: the server that serves everything, or those of a cluster's slots; and the slot of a key. No I/O."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable
from threading import RLock
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

from headgate.core.check import Check, Client
from headgate.core.key import escape
from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.breaker import Breaker
from headgate.stores.redis.faults import Address, Owners, Redirect
from headgate.stores.redis.sentinel import NoMaster

MAX_REDIRECTS: Final = 8  # per call: beyond this, servers do not agree on the owner
GONE_SECONDS: Final = 10.0  # after which a server that serves nothing is dropped

RECENT_SECONDS: Final = 1.0  # for which callers wait for the end of an outage


SLOTS: Final = 16_384


def slot_of_tag(tag: str) -> int:
    """Return the slot of all keys with this hash tag."""
    return crc_hqx(tag.encode("utf-8", "surrogateescape"), 0) % SLOTS


def slot_of(name: str) -> int:
    """Return the slot of all keys of a subject, client or idempotency key: escaped, its name is their hash tag."""
    return slot_of_tag(escape(name))


def slot_of_key(key: str) -> int:
    """Return the slot of one of our keys, by its hash tag."""
    return slot_of_tag(key[key.index("{") + 1 : key.index("}")])


def slot_of_check(check: Check) -> int:
    return slot_of(check.subject) if "{*}" in check.key_template else slot_of_key(check.key)  # the latter for shards


def slot_of_client(client: Client) -> int:
    return slot_of(client.name)


RESERVATIONS: Final = slot_of("reservations")


class ClusterOutage:
    """An outage of a whole cluster. While it is recent, callers wait for its end, within their deadlines.

    With `cluster-require-full-coverage yes`, every server refuses all keys while a failed server's slots have no owner,
    until a replica takes over. That is usually brief; if not, callers should not wait.
    """

    def __init__(self) -> None:
        self._began = self._seen = float("-inf")

    def is_recent(self, now: float) -> bool:
        """Return whether to wait, after a server reported that the cluster is down."""
        if now - self._seen > RECENT_SECONDS:
            self._began = now
        self._seen = now
        return now - self._began < RECENT_SECONDS


class AnyNode(Protocol):
    """The interface of both kinds of nodes."""

    name: str
    host: str
    breaker: Breaker

    def retire(self) -> None:
        """Refuse calls that have not been sent yet: another server is now the master."""


N = TypeVar("N", bound=AnyNode)


class Topology(Generic[N]):
    """The known servers of a store. `make` creates the node of an address; `drop` gets unused nodes."""

    def __init__(self, make: Callable[[Address], N], drop: Callable[[N], None]) -> None:
        self.generation = 0  # number of topology updates, including "unknown"
        self.error: StoreError | None = None  # the error of the last discovery, if it failed
        self._lock = RLock()
        self._make = make
        self._drop = drop
        self.owners: list[N] = []  # by slot; a single one serves all slots; empty: unknown so far
        self._nodes: dict[Address, N] = {}
        self._idle_since: dict[Address, float] = {}  # servers that serve nothing
        self.outage = ClusterOutage()
        self._inherited: list[N] = []  # the owners before a fork or a close, until the first discovery

    def serving(self, slot: int) -> N | None:
        """Return the server of a slot; None if it is unknown."""
        owners = self.owners
        if len(owners) > 1:
            return owners[slot]
        return owners[0] if owners else None

    def following(self, slot: int) -> int | None:
        """Return the first later slot whose server serves no earlier slot; None if there is none."""
        owners = self.owners
        seen = set(map(id, owners[: slot + 1]))
        return next((later for later in range(slot + 1, len(owners)) if id(owners[later]) not in seen), None)

    @property
    def nodes(self) -> list[N]:
        with self._lock:
            return list(self._nodes.values())

    def candidates(self) -> list[Address]:
        """Return servers that can be asked for the topology, healthy ones first."""
        with self._lock:
            return sorted(self._nodes, key=lambda address: self._nodes[address].breaker.state != "closed")

    def set_owners(self, owners: Owners) -> None:
        """Record a successful discovery: the owners of all slots."""
        with self._lock:
            nodes: list[N] = []
            for count, address in owners:
                nodes += [self.at(address)] * count
            self.owners, self._inherited = nodes, []
            self._forget({address for _, address in owners})
            self.error = None
            self.generation += 1
            self._retire()

    def note_failure(self, error: StoreError) -> None:
        """Record a failed discovery. The known topology stays, except for a master that Sentinels no longer name."""
        with self._lock:
            self.owners, self._inherited = self.owners or self._inherited, []
            if isinstance(error, NoMaster):
                named = [self._nodes.get(address) for address in error.named]
                self.owners = [node for node in self.owners if node in named]
            self.error = error
            self.generation += 1
            self._retire()

    def forget(self) -> None:
        """Reset after a fork or a close, when no thread watches the topology.

        The next caller starts a discovery. If no server answers, the previous topology is used.
        """
        with self._lock:
            self._inherited, self.owners = self.owners or self._inherited, []

    def at(self, address: Address) -> N:
        """Return the node of an address."""
        with self._lock:
            node = self._nodes.get(address)
            if node is None:
                node = self._nodes[address] = self._make(address)
            return node

    def follow(self, slot: int, redirect: Redirect) -> N | None:
        """Return the server that another server named instead of itself; None if it named none."""
        if redirect.address is None:
            return None
        node = self.at(redirect.address)
        with self._lock:
            if not redirect.asking and len(self.owners) > 1:
                self.owners[slot] = node
        return node

    def unknown_error(self) -> StoreError:
        """Return the error raised while the topology is unknown."""
        if self.error is not None:
            return self.error
        return StoreUnavailable("no Redis server is known yet: the topology was not discovered", sent=False)

    def reset_after_fork(self) -> None:
        """Reset in a forked child, where neither the lock's holder nor the watching thread exists."""
        self._lock = RLock()
        self.forget()

    def _retire(self) -> None:
        """Send callers away from servers that are no longer the master. A cluster's servers do that themselves."""
        if len(self.owners) <= 1:
            for node in self._nodes.values():
                if node not in self.owners:
                    node.retire()

    def _forget(self, owners: set[Address]) -> None:
        """Drop nodes that have served nothing for a while."""
        now = monotonic()
        for address in list(self._nodes):
            if address in owners:
                self._idle_since.pop(address, None)
            elif now - self._idle_since.setdefault(address, now) >= GONE_SECONDS:
                del self._idle_since[address]
                self._drop(self._nodes.pop(address))
