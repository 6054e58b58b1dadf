"""The interface of a store. Write your own against this, and test it with `headgate.testing.StoreContract`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from headgate.core.check import Answer, Charge, Check, Client, Group
from headgate.core.ledger import Counted, LedgerPage, Swap
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.core.reservation import Claim, Expired, Record
from headgate.core.share import Standing
from headgate.stores.program import Program


@runtime_checkable
class Store(Protocol):
    """Evaluates groups of checks atomically, from any number of threads. Faults raise `StoreError`."""

    def check(self, groups: Sequence[Group]) -> Sequence[Answer]:
        """Decide each group by itself: charge all its checks if every enforced one fits, else none.

        Answers come in the order of the groups. A conflict or a fault among the answers concerns its own group only. A
        fault that kept all groups from being decided is raised.
        """
        ...

    def refund(self, charges: Sequence[Charge]) -> None:
        """Undo charges that an earlier `check` made. Has no effect on a charge whose state has expired since."""
        ...

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        """Forget the state of these checks' keys, and the violations and blocks of these clients.

        The checks' quota and cost do not matter.
        """
        ...

    def close(self) -> None:
        """Close connections. Do not use a store after closing it."""
        ...


@runtime_checkable
class CompilingStore(Store, Protocol):
    """A store that compiles plans. For any other store, the limiter builds programs on its `check`."""

    def compile(self, plan: Plan, states: WarningStates | None = None, told: Plan | None = None) -> Program:
        """Return the program that decides requests of a plan.

        Decisions get `states`. They show the plan `told`, if it is not the one that is charged: one with larger
        limits, of which the same remains.
        """
        ...


@runtime_checkable
class ReservingStore(Store, Protocol):
    """A store that keeps reservations: what `Limiter.reserve` needs. All times are by the store's own clock."""

    def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None:
        """Keep the record of a reservation. It expires after `ttl_us`, and is forgotten an hour after that."""
        ...

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        """Replace the record of a reservation that is neither claimed nor given back, and let it live for `ttl_us`
        from now. Returns whether there was one."""
        ...

    def take_reservation(self, reservation_id: str) -> Claim | None:
        """Take out a reservation, in one atomic step: one caller gets it, and all others get None."""
        ...

    def expire(self) -> Expired:
        """Take out reservations that have expired, a hundred or so, for the caller to give back.

        Only one caller gets each of them. For an hour, `take_reservation` still finds it: then it is `LATE`.
        """
        ...

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Sequence[int] | None:
        """Undo charges, as `refund` does, and charge checks whether they fit or not.

        Undoing a charge with a reservation's mark (`Check.reservation`) leaves a bucket as if the charge had not been
        made, however many others overlap it. A refund of 0 says that there is nothing left to give back. Other charges
        that overlapped in time give back no more together than was lost. A window counts a surcharge above its limit
        if need be; a bucket goes into debt. Returns how much of each refund was given back; None: that is not known.
        """
        ...


@runtime_checkable
class AtomicReservingStore(ReservingStore, Protocol):
    """A store that can charge a reservation and keep its record in one step."""

    def reserve(self, reservation_id: str, pending: Record, ttl_us: int) -> Answer | None:
        """Charge `pending.charge` as `check` does and, if it fits, keep the record with the answer: in one atomic step.

        Returns the answer. Returns None, and does nothing, if this takes several steps: limits on several servers.
        """
        ...


@runtime_checkable
class SlotStore(Store, Protocol):
    """A store that decides limits of concurrency: what `Limiter.acquire` needs.

    A check with a `slot` that is charged to such a limit holds that slot until it is released, or expires by the
    store's clock: a quota's `window` after it was taken or last renewed.
    """

    def release_slots(self, held: Sequence[Check]) -> Sequence[bool]:
        """Release the slot of each check. Returns whether it was held and not expired. Repeating changes nothing."""
        ...

    def renew_slots(self, held: Sequence[Check]) -> Sequence[bool]:
        """Renew the slot of each check: its time to live begins now. Returns whether it was held and not expired."""
        ...


@runtime_checkable
class ClearingStore(Store, Protocol):
    """A store that can forget everything it keeps."""

    def clear_some(self, cursor: Any = None) -> Any:
        """Forget some of what the store keeps. Return the cursor of the next call; None when nothing is left."""
        ...


@runtime_checkable
class HeartbeatStore(Store, Protocol):
    """A store that knows which nodes use it: what failure mode `local` needs to count by shares."""

    def record_heartbeat(self, name: str, node: str, ttl_us: int) -> Standing:
        """Note a node's heartbeat: among the nodes called `name`, it is alive for `ttl_us` by the store's clock.

        With a `ttl_us` of 0, the node leaves. Returns how many are alive, and the node's place among them by its id.
        """
        ...


@runtime_checkable
class PeerStore(Store, Protocol):
    """A store that other regions can read: what `headgate.features.regions` needs of each."""

    def counts(self, checks: Sequence[Check]) -> list[Counted | None]:
        """Return the counts of these checks' keys, for `fixed_window` and `sliding_window_counter`; None: no count.

        A count may be of a bucket of time that is over.
        """
        ...

    def read(self, names: Sequence[str]) -> list[LedgerPage]:
        """Return pages of the ledger."""
        ...

    def swap(self, swaps: Sequence[Swap]) -> list[bool]:
        """Write each page that has not changed since it was read, each in one atomic step. Returns whether it did."""
        ...


@runtime_checkable
class AsyncStore(Protocol):
    """`Store`, awaited: the same promises, from any number of tasks."""

    async def check(self, groups: Sequence[Group]) -> Sequence[Answer]: ...

    async def refund(self, charges: Sequence[Charge]) -> None: ...

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class AsyncCompilingStore(AsyncStore, Protocol):
    """A store that compiles plans into programs whose decisions are awaited."""

    def compile(self, plan: Plan, states: WarningStates | None = None, told: Plan | None = None) -> Program: ...


@runtime_checkable
class AsyncReservingStore(AsyncStore, Protocol):
    """`ReservingStore`, awaited."""

    async def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None: ...

    async def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool: ...

    async def take_reservation(self, reservation_id: str) -> Claim | None: ...

    async def expire(self) -> Expired: ...

    async def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Sequence[int] | None: ...


@runtime_checkable
class AsyncAtomicReservingStore(AsyncReservingStore, Protocol):
    """`AtomicReservingStore`, awaited."""

    async def reserve(self, reservation_id: str, pending: Record, ttl_us: int) -> Answer | None: ...


@runtime_checkable
class AsyncSlotStore(AsyncStore, Protocol):
    """`SlotStore`, awaited."""

    async def release_slots(self, held: Sequence[Check]) -> Sequence[bool]: ...

    async def renew_slots(self, held: Sequence[Check]) -> Sequence[bool]: ...


@runtime_checkable
class AsyncClearingStore(AsyncStore, Protocol):
    """`ClearingStore` for asyncio."""

    async def clear_some(self, cursor: Any = None) -> Any: ...


@runtime_checkable
class AsyncHeartbeatStore(AsyncStore, Protocol):
    """`HeartbeatStore`, awaited."""

    async def record_heartbeat(self, name: str, node: str, ttl_us: int) -> Standing: ...


@runtime_checkable
class AsyncPeerStore(AsyncStore, Protocol):
    """`PeerStore`, awaited."""

    async def counts(self, checks: Sequence[Check]) -> list[Counted | None]: ...

    async def read(self, names: Sequence[str]) -> list[LedgerPage]: ...

    async def swap(self, swaps: Sequence[Swap]) -> list[bool]: ...
