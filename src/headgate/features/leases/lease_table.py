"""The leases of one node, by key: created on demand, ended when unused, and dropped to make room for others.

No I/O and no lock: `Leases` holds its lock during all changes except to the times of `note_check`.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.check import Charge, Check
from headgate.features.leases.calls import LeasedCheck
from headgate.features.leases.lease import LIFE_US, Lease
from headgate.features.leases.status import LeaseCounts


class LeaseTable:
    """Leases by key template and subject, at most `max_keys` of them."""

    def __init__(self, max_keys: int, counts: LeaseCounts) -> None:
        self.max_keys = max_keys
        self.keys = 0
        self.held: dict[Lease, None] = {}  # with tokens now or at the last tick
        self._counts = counts
        self._spaces: dict[str, dict[str, Lease]] = {}
        self._full_until_us = 0  # do not look for room before this
        self._sighted_us: dict[tuple[str, str], int] = {}  # times of the last checks of keys without a lease

    @property
    def outstanding(self) -> int:
        """The tokens that are held."""
        return sum(lease.held for lease in self.held)

    def of(self, key_template: str) -> dict[str, Lease]:
        """Return the leases of a key template by subject: always the same dict."""
        return self._spaces.setdefault(key_template, {})

    def get(self, check: Check) -> Lease | None:
        return self._spaces.get(check.key_template, {}).get(check.subject)

    def find_or_add(self, check: Check, at_us: int) -> Lease | None:
        """Return the lease of a key, created if there is demand for it; None if there is no demand, or no room."""
        table = self._spaces.get(check.key_template)
        if table is None:
            table = self._spaces[check.key_template] = {}
        lease = table.get(check.subject)
        if lease is None:
            if not self.note_check((check.key_template, check.subject), at_us):
                return None
            if self.keys >= self.max_keys and not self._make_room(at_us):
                return None
            lease = table[check.subject] = Lease(check, at_us)
            self.keys += 1
        elif lease.quota != check.quota:  # the rule has changed
            lease.gone = True
            lease.end()
            lease = table[check.subject] = Lease(check, at_us)
        return lease

    def note_check(self, key: tuple[str, str], at_us: int) -> bool:
        """Record a check of a key. Return whether there was another in the last second."""
        sighted = self._sighted_us
        before_us = sighted.get(key)
        if before_us is None and len(sighted) >= self.max_keys:
            sighted.clear()
        sighted[key] = at_us
        return before_us is not None and at_us - before_us < LIFE_US

    def put_back(self, part: LeasedCheck) -> None:
        """Put the tokens taken for a check back into its lease."""
        lease, taken, _ = part
        if lease.gone:
            self._counts.stranded += sum(count for _, count in taken)
        elif taken:
            lease.put_back(taken)
            self.held[lease] = None  # so that the next tick sees it

    def tick(self, at_us: int) -> list[Charge]:
        """End slices that are unused or have expired. Return the charges to refund."""
        charges: list[Charge] = []
        for lease in list(self.held):
            lease.tick(at_us)
            charges += self._take_leftovers(lease, at_us)
            if not lease.held:
                del self.held[lease]
        return charges

    def end(self, at_us: int) -> list[Charge]:
        """End all leases. Return the charges to refund."""
        charges: list[Charge] = []
        for lease in self.held:
            lease.end()
            charges += self._take_leftovers(lease, at_us)
        self.held.clear()
        return charges

    def remove(self, checks: Sequence[Check]) -> None:
        """Drop the leases of these checks, without refunds."""
        for check in checks:
            lease = self._spaces.get(check.key_template, {}).pop(check.subject, None)
            if lease is not None:
                self.keys -= 1
                self._drop(lease)

    def clear(self) -> None:
        """Drop all leases, without refunds."""
        for table in self._spaces.values():
            for lease in table.values():
                self._drop(lease)
            table.clear()
        self.keys = 0

    def forget_all(self) -> None:
        """Drop everything in a forked child, including leases of changed rules with tokens to return."""
        self.clear()
        self.held.clear()
        self._sighted_us.clear()

    def _make_room(self, at_us: int) -> bool:
        """Drop keys that hold nothing. Usually finds some, because leases are released within a second."""
        if at_us < self._full_until_us:
            return False
        for table in self._spaces.values():
            for subject in [subject for subject, lease in table.items() if lease not in self.held]:
                if not table[subject].fetching:
                    del table[subject]
                    self.keys -= 1
        if self.keys > self.max_keys * 7 // 8:
            self._full_until_us = at_us + LIFE_US
        return self.keys < self.max_keys

    def _take_leftovers(self, lease: Lease, at_us: int) -> list[Charge]:
        charges, stranded = lease.take_leftovers(at_us)
        self._counts.stranded += stranded
        return charges

    def _drop(self, lease: Lease) -> None:
        """Take all tokens out of a lease, without refunds. Other threads may be reading the lease."""
        lease.gone = True
        lease.end()
        self._counts.stranded += sum(count for _, count in lease.leftover)
        lease.leftover = []
        self.held.pop(lease, None)
