"""Finds out which servers serve what, in a thread of its own, whenever somebody has reason to ask.

Of Sentinel: the address of the master, which is believed when that server says that it is one. Of a cluster: who has
which slots. It looks at most every `PAUSE` seconds. Stores for asyncio use it, too: it is seldom at work, and then it
waits for others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Any, Final

from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.redis import script
from headgate.stores.redis.faults import FAULTS, Address
from headgate.stores.redis.options import Target, Way
from headgate.stores.redis.slots import SLOTS
from headgate.stores.redis.wire import Wire

PAUSE: Final = 0.1  # seconds between the end of a look and the next
PATIENCE: Final = 0.25  # seconds for one server's answer

log = logging.getLogger("headgate.topology")


class Lookout:
    """`heard` is told what came of each look, in the lookout's thread: the owner of each slot, or why there is none.

    A master owns all slots, and is told as the only one. `known` names servers that may be asked besides the URL's.
    """

    def __init__(
        self,
        target: Target,
        heard: Callable[[Sequence[Address] | StoreError], None],
        known: Callable[[], list[Address]],
    ) -> None:
        self._target = target
        self._heard = heard
        self._known = known
        self._seeds = list(target.seeds)
        self._lock = Lock()
        self._wanted = Event()
        self._closed = False
        self._rested = float("-inf")  # from when on the next look may begin
        self._looking = False
        self._thread: Thread | None = None

    def ask(self) -> bool:
        """Have it look. Whether it does so now, or before long: then it is worth while to wait for what it finds."""
        with self._lock:
            if self._closed:
                return False
            soon = self._looking or monotonic() >= self._rested
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="headgate-lookout", daemon=True)
                self._thread.start()
            self._wanted.set()
        return soon

    def close(self) -> None:
        """Stop, as soon as it has heard from whom it is asking."""
        with self._lock:
            self._closed = True
            self._wanted.set()

    def forget(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._lock, self._wanted, self._thread, self._looking = Lock(), Event(), None, False

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            if not self._closed:
                sleep(max(0.0, self._rested - monotonic()))
            self._wanted.clear()
            if self._closed:  # looked at after the event was cleared, which close sets as well
                return
            self._looking = True
            found: Sequence[Address] | StoreError
            try:
                found = self._look()
            except StoreError as error:
                found = error
            self._rested = monotonic() + PAUSE
            self._looking = False
            if not self._closed:
                self._heard(found)

    def _look(self) -> Sequence[Address]:
        """The owner of each slot. Raises `StoreError`."""
        ask = self._master if self._target.topology == "sentinel" else self._slots
        known = [] if self._target.topology == "sentinel" else self._known()
        problems = []
        for address in dict.fromkeys((*known, *self._seeds)):
            try:
                found = ask(address)
            except (*FAULTS, StoreError, LookupError, TypeError, ValueError) as error:
                problems.append(f"{address[0]}:{address[1]}: {error}")
                continue
            if address in self._seeds:  # whoever answers is asked first the next time
                self._seeds.remove(address)
                self._seeds.insert(0, address)
            return found
        whom = "Sentinel" if self._target.topology == "sentinel" else "node of the cluster"
        raise StoreUnavailable(f"no {whom} could tell which Redis server to ask: {'; '.join(problems)}", sent=False)

    def _master(self, address: Address) -> list[Address]:
        assert self._target.seed_way is not None
        command: script.Command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._target.service)
        with _asking(self._target.seed_way.to(address)) as ask:
            answer = ask(command)
        if answer is None:
            raise StoreUnavailable(f"it knows no service {self._target.service!r}", sent=False)
        master = (answer[0].decode(), int(answer[1]))
        with _asking(self._target.way.to(master)) as ask:
            role = ask(("ROLE",))[0].decode()
        if role != "master":
            raise StoreUnavailable(f"it names {master[0]}:{master[1]}, which is a {role}", sent=False)
        return [master]

    def _slots(self, address: Address) -> list[Address]:
        with _asking(self._target.way.to(address)) as ask:
            answer = ask(("CLUSTER", "SLOTS"))
        owners: list[Address | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_ in answer:
            owner = (host.decode() if host else address[0], port)
            owners[first : last + 1] = [owner] * (last - first + 1)
        others = [owner for owner in owners if owner is not None]
        if not others:
            raise StoreUnavailable("it knows of no slots", sent=False)
        return [owner or others[0] for owner in owners]  # a slot that nobody serves: it will be told so


@contextmanager
def _asking(way: Way) -> Iterator[Callable[[script.Command], Any]]:
    """A connection to ask over."""
    deadline = monotonic() + PATIENCE
    wire = Wire(Way(way.kind, {**way.arguments, "socket_connect_timeout": PATIENCE}), PATIENCE, deadline)
    try:
        yield lambda command: wire.ask(script.packed(command), deadline)
    finally:
        wire.close()
