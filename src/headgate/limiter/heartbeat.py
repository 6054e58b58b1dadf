# Generated from async_heartbeat.py by scripts/generate-sync: edit that file, and run `make generate`.
"""Background work for rules with failure mode `local`: heartbeats, and charges after an outage.

A limiter sends heartbeats to the store, so that every node knows how many nodes there are. After an outage, the limiter
charges the store for what it admitted in the meantime.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import groupby
from time import monotonic
from typing import Any
from weakref import WeakSet

from headgate.core.check import Check
from headgate.errors import StoreError, StoreUnavailable
from headgate.limiter.engine import Engine
from headgate.limiter.periodic import Periodic
from headgate.limiter.shares import BEAT_SECONDS, LIVES_SECONDS
from headgate.stores.protocol import HeartbeatStore, ReservingStore, Store

LIVES_US = round(LIVES_SECONDS * 1_000_000)

log = logging.getLogger("headgate")


class Heartbeat:
    """The heartbeat of one limiter. It does not keep the limiter alive."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self._store = store
        self._engine = engine
        self._shares = engine.fallback.shares
        self._shares.merges = isinstance(store, ReservingStore)
        self.siblings: WeakSet[Heartbeat] = WeakSet()  # of limiters on the same store, which end with this one
        self._periodic = Periodic(self.work, BEAT_SECONDS, "headgate-heartbeat")

    def attend(self) -> None:
        """Start, if any rule has failure mode local."""
        if self._engine.has_local:
            self._periodic.begin()

    def begin_with(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the program of a plan with a limit of failure mode local: its first check starts the heartbeat."""
        begin = self._periodic.begin

        def check(*request: Any) -> Any:
            begin()
            return program(*request)

        return check

    def wake(self) -> None:
        """Send a heartbeat now, because the store is back."""
        self._periodic.wake()

    def close(self) -> None:
        """Stop, and tell the other nodes that this one leaves."""
        for sibling in list(self.siblings):
            sibling.close()
        if self._periodic.close() and isinstance(self._store, HeartbeatStore) and not self._engine.outage.lasts:
            try:
                self._store.record_heartbeat(self._engine.name, self._shares.node, 0)
            except StoreError as error:
                log.debug("could not tell the other nodes that this one is leaving (%s)", error)

    def work(self) -> None:
        """Send a heartbeat, and charge the store for what was admitted without it."""
        if not self._engine.has_local:
            return
        try:
            if isinstance(self._store, HeartbeatStore):
                shares = self._shares
                shares.set_standing(self._store.record_heartbeat(self._engine.name, shares.node, LIVES_US), monotonic())
                self._merge()
            elif not self._engine.outage.lasts:
                self._merge()
        except StoreError as error:
            log.debug("no heartbeat (%s)", error)

    def _merge(self) -> None:
        """Charge the store for what was admitted without it."""
        if not isinstance(self._store, ReservingStore):
            return
        for checks in self._owed_charges():
            try:
                self._store.adjust((), checks)
            except StoreError as error:
                if isinstance(error, StoreUnavailable) and not error.sent:
                    self._shares.keep_owed(checks)
                else:  # it may have been charged, and must not be charged twice
                    log.warning("could not report requests admitted during the outage to the store (%s)", error)

    def _owed_charges(self) -> Iterator[list[Check]]:
        """Yield what to charge to the store: one subject at a time, so that each is charged in full or not at all."""
        owed = sorted(self._shares.take_owed(self._engine.fallback.local), key=_subject)
        if owed:
            log.info("reconciling %s limits counted during the outage", len(owed))
        for _, checks in groupby(owed, key=_subject):
            yield list(checks)


def _subject(check: Check) -> str:
    return check.subject
