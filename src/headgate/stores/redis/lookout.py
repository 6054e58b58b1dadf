"""Finds out which servers serve what, in a thread of its own, whenever somebody has reason to ask.

Of the Sentinels: the address of the master, which is believed when that server says that it is one. Of a cluster: who
has which slots. It looks at most every `PAUSE` seconds. Stores for asyncio use it, too: it is seldom at work, and
then it waits for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Any, Final

from headgate.errors import StoreError, StoreUnavailable
from headgate.stores.redis import script
from headgate.stores.redis.faults import FAULTS, Address, Owners
from headgate.stores.redis.options import Target, Way
from headgate.stores.redis.slots import SLOTS
from headgate.stores.redis.wire import Wire

PAUSE: Final = 0.1  # seconds between the end of a look and the next
PATIENCE: Final = (0.1, 1.0)  # seconds for one server's answer: as long as a check may take, between these

_TROUBLE: Final = (*FAULTS, LookupError, TypeError, ValueError)  # the last: an answer that makes no sense


class Lookout:
    """`heard` is told what came of each look, in the lookout's thread: who owns the slots, or why nobody does.

    A master owns one, which is all there is. `known` names servers that may be asked besides the URL's.
    """

    def __init__(
        self,
        target: Target,
        heard: Callable[[Owners | StoreError], None],
        known: Callable[[], list[Address]],
    ) -> None:
        self._target = target
        self._heard = heard
        self._known = known
        self._seeds = list(target.seeds)
        self._patience = min(max(PATIENCE[0], target.options.timeout), PATIENCE[1])
        self._lock = Lock()
        self._wanted = Event()
        self._closed = False
        self._rested = float("-inf")  # from when on the next look may begin
        self._looking = False
        self._thread: Thread | None = None

    def ask(self) -> bool:
        """Have it look. Whether it does so now, or before long: then it is worth while to wait for what it finds."""
        with self._lock:
            self._closed = False
            soon = self._looking or monotonic() >= self._rested
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="headgate-lookout", daemon=True)
                self._thread.start()
            self._wanted.set()
        return soon

    def close(self) -> None:
        """Stop, as soon as it has heard from whom it is asking; until somebody asks again."""
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
            with self._lock:
                self._wanted.clear()
                if self._closed:
                    self._thread = None
                    return
            self._looking = True
            found: Owners | StoreError
            try:
                found = self.look()
            except StoreError as error:
                found = error
            self._rested = monotonic() + PAUSE
            self._looking = False
            if not self._closed:
                self._heard(found)

    def look(self) -> Owners:
        """Who owns the slots, asked now, by whoever wants to wait. Raises `StoreError`."""
        return [(1, self._master())] if self._target.topology == "sentinel" else self._slots()

    def _master(self) -> Address:
        """Whom the Sentinels name, if that server agrees. The latest of what they know counts, by its epoch.

        One that leads a failover takes up to a second to name the new master, but marks it at once as promoted.
        """
        assert self._target.seed_way is not None
        problems: list[str] = []
        named: dict[Address, tuple[int, bool]] = {}
        for address in list(self._seeds):
            try:
                with self._asking(self._target.seed_way.to(address)) as ask:
                    self._note(ask, named)
            except _TROUBLE as error:
                problems.append(f"Sentinel at {address[0]}:{address[1]}: {error}")
                self._seeds.remove(address)  # it is asked last the next time
                self._seeds.append(address)
        latest = max(named.values(), default=(0, False))[0]
        for address, (epoch, _) in sorted(named.items(), key=lambda item: item[1], reverse=True):
            if (
                epoch < latest
            ):  # by one who missed a failover: it may be a master, still or again, that has been replaced
                break
            try:
                with self._asking(self._target.way.to(address)) as ask:
                    role = ask(("ROLE",))[0].decode()
            except _TROUBLE as error:
                role = str(error)
            if role == "master":
                return address
            problems.append(f"{address[0]}:{address[1]} is no master: {role}")
        raise StoreUnavailable(f"no master of {self._target.service!r} was found: {'; '.join(problems)}", sent=False)

    def _note(self, ask: Callable[[script.Command], Any], named: dict[Address, tuple[int, bool]]) -> None:
        """Whom one Sentinel names: since which epoch, and whether it is being promoted."""
        known = _fields(ask(("SENTINEL", "MASTER", self._target.service)))
        replicas = [_fields(replica) for replica in ask(("SENTINEL", "REPLICAS", self._target.service))]
        epoch = int(known["config-epoch"])
        promoted = [replica for replica in replicas if "promoted" in replica["flags"].split(",")]
        for fields, is_promoted in ((known, False), *((replica, True) for replica in promoted)):
            address = (fields["ip"], int(fields["port"]))
            named[address] = max(named.get(address, (0, False)), (epoch, is_promoted))

    def _slots(self) -> Owners:
        """As the first server that answers knows them."""
        problems = []
        for address in dict.fromkeys((*self._known(), *self._seeds)):
            try:
                with self._asking(self._target.way.to(address)) as ask:
                    return _owners(ask(("CLUSTER", "SLOTS")), address[0])
            except _TROUBLE as error:
                problems.append(f"{address[0]}:{address[1]}: {error}")
        raise StoreUnavailable(
            f"no node of the cluster has told who has which slots: {'; '.join(problems)}", sent=False
        )

    @contextmanager
    def _asking(self, way: Way) -> Iterator[Callable[[script.Command], Any]]:
        """A connection to ask over."""
        wire = Wire(way, self._patience, monotonic() + self._patience)
        try:
            yield lambda command: wire.ask(script.packed(command), monotonic() + self._patience)
        finally:
            wire.close()


def _fields(flat: list[bytes]) -> dict[str, str]:
    texts = [text.decode() for text in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _owners(answer: list[Any], host: str) -> Owners:
    """Who has the slots, by what the server at `host` says."""
    found: list[tuple[int, Address | None]] = []
    at = 0
    for first, last, (name, port, *_), *_ in sorted(answer, key=itemgetter(0)):
        if first > at:
            found.append((first - at, None))
        found.append((last + 1 - first, (name.decode() if name else host, port)))
        at = last + 1
    if not found:
        raise ValueError("it knows of no slots")
    found.append((SLOTS - at, None))
    anybody = next(owner for _, owner in found if owner is not None)  # asked for a slot that nobody has, it will say so
    return [(count, owner or anybody) for count, owner in found if count]
