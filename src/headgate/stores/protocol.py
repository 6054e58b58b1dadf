"""The interface of a store. Implement it for your own store, and test that with `headgate.testing.StoreContract`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from headgate.core.check import Answer, Charge, Check, Client, Group
from headgate.core.cost import Cost
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.core.reservation import Claim, ClaimedAdjustments, ExpiredClaims, Record, ReservationAnswer
from headgate.core.share import Standing
from headgate.errors import StoreError
from headgate.stores.program import Program

if TYPE_CHECKING:
    from headgate.stores.breaker import State


@runtime_checkable
class Store(Protocol):
    """Evaluates groups of checks atomically, from any number of threads. Faults raise `StoreError`."""

    def check(self, groups: Sequence[Group]) -> Sequence[Answer]:
        """Decide each group separately: charge all its checks if every enforced one fits, else none.

        Answers come in the order of the groups. A conflict or a fault among the answers concerns its own group only. If
        a fault prevented the decision of all groups, it is raised.
        """
        ...

    def refund(self, charges: Sequence[Charge]) -> None:
        """Undo charges of an earlier `check`. Has no effect on a charge whose state has expired since."""
        ...

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        """Delete the state of these checks' keys, and the violations and blocks of these clients.

        The checks' quota and cost do not matter.
        """
        ...

    def close(self) -> None:
        """Close connections. Do not use a store after closing it."""
        ...


@runtime_checkable
class CompilingStore(Store, Protocol):
    """A store that compiles plans. For any other store, the limiter builds programs on its `check`."""

    def compile(self, plan: Plan, states: WarningStates | None = None, shown: Plan | None = None) -> Program:
        """Return the program that decides requests of a plan.

        Decisions get `states`. If `shown` is set, they show that plan instead of the charged one: its limits are
        larger, with the same amounts remaining.
        """
        ...


@runtime_checkable
class ReservingStore(Store, Protocol):
    """A store that keeps reservations, for `Limiter.reserve`. All times are by the store's own clock."""

    def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None:
        """Store the record of a reservation. It expires after `ttl_us`, and is deleted an hour after that."""
        ...

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        """Replace a reservation's record, and let it live for `ttl_us` from now.

        Returns False, and does nothing, if the reservation was claimed or refunded.
        """
        ...

    def claim_reservation(self, reservation_id: str, cost: Cost) -> Claim | None:
        """Claim a reservation, to settle it at `cost`. One caller gets it, and all others get None.

        If `settle` does not follow within `PENDING_US`, `claim_expired` hands the claim out. Of a reservation that
        `claim_expired` has handed out, everybody gets that claim, with status `EXPIRING`: settle it, and claim again.
        """
        ...

    def claim_expired(self) -> ExpiredClaims:
        """Claim expired reservations, at cost 0, and claims that were not settled in time: about a hundred at a time.

        For an hour after an expired one is settled at cost 0, `claim_reservation` still finds it, with status `LATE`.
        """
        ...

    def settle(self, settled: Sequence[ClaimedAdjustments]) -> Sequence[Sequence[int]]:
        """Apply the changes of claims, as `adjust` does, and take the reservations out. A repetition has no effect.

        Returns for each claim how much of each refund was given back.
        """
        ...

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Sequence[int] | None:
        """Undo charges, as `refund` does, and charge checks even if they do not fit.

        Undoing a charge with a reservation's number (`Check.reservation`) leaves a bucket as if the charge had not been
        made, however many others overlap it. A refund of 0 only ends the tracking of a reservation. Other charges that
        overlapped in time refund no more together than was lost. A surcharge may take a window above its limit, and a
        bucket into debt. Returns how much of each refund was given back; None if that is unknown.
        """
        ...


@runtime_checkable
class AtomicReservingStore(ReservingStore, Protocol):
    """A store that can charge a reservation and keep its record in one step."""

    def new_reservation_id(self, charge: Group) -> str | None:
        """Return the id of a new reservation for these checks. It tells where its record will be.

        None: `reserve` cannot charge these checks, so the record has to be written before the charge.
        """
        ...

    def reserve(self, reservation_id: str, pending: Record, ttl_us: int) -> ReservationAnswer:
        """Charge `pending.charge` as `check` does and, if it fits, store the record, in one atomic step.

        If the limits are on several servers, the step that charges the first of them stores the pending record, which
        expires soon. The answer says so, and the caller renews the record.
        """
        ...


@runtime_checkable
class SlotStore(Store, Protocol):
    """A store that decides concurrency limits, for `Limiter.acquire`.

    A check with a `slot` that is charged to such a limit holds the slot until it is released or expires. By the store's
    clock, a slot expires a quota's `window` after it was taken or last renewed.

    A check whose request waits for the slot (`arrived_us`) and lacks nothing but slots keeps a place in a queue,
    ordered by `arrived_us` and the slot's id, until `TICKET_US` after it last asked or was renewed. `headgate.testing`
    has the contract.
    """

    def release_slots(self, held: Sequence[Check]) -> Sequence[bool]:
        """Release the slot of each check. Returns whether it was held and not expired. Repeating it has no effect.

        A request that waits leaves the queue. If it has neither slot nor place, its check is refused for `TICKET_US`.
        """
        ...

    def renew_slots(self, held: Sequence[Check]) -> Sequence[bool]:
        """Extend the slot of each check to its time to live from now. Returns whether it was held and not expired.

        A request that waits keeps its place in the queue. Returns whether it had one.
        """
        ...


@runtime_checkable
class ClearingStore(Store, Protocol):
    """A store that can delete everything in it."""

    def clear_some(self, cursor: Any = None) -> Any:
        """Delete a part of what the store holds. Return a cursor for the next call; None when nothing is left."""
        ...


@runtime_checkable
class HeartbeatStore(Store, Protocol):
    """A store that knows which nodes use it, for the shares of failure mode `local`."""

    def record_heartbeat(self, name: str, node: str, ttl_us: int) -> Standing:
        """Record a node's heartbeat: among the nodes of `name`, it is alive for `ttl_us` by the store's clock.

        With a `ttl_us` of 0, the node leaves. Returns how many nodes are alive, and the rank of this node by its id.
        """
        ...


class Counted(NamedTuple):
    """The count of a key of a window algorithm. It only grows within one time bucket."""

    start_us: int  # start of the time bucket, by the store's clock
    current: int
    previous: int = 0  # count of the bucket before; fixed_window does not store it


class LedgerPage(NamedTuple):
    """A page of a ledger, and the time of the read, by the clock of the server that keeps it."""

    now_us: int
    text: str | None  # None: nothing was written, or it has expired


class Swap(NamedTuple):
    """A page to write if it has not changed since it was read. The store deletes it after `ttl_us`."""

    name: str
    before: str | None
    after: str
    ttl_us: int


@runtime_checkable
class PeerStore(Store, Protocol):
    """A store that other regions can read, for `headgate.features.regions`."""

    def counts(self, checks: Sequence[Check]) -> list[Counted | None]:
        """Return the counts of these checks' keys, for `fixed_window` and `sliding_window_counter`; None: no count.

        A count may belong to a time bucket that is over.
        """
        ...

    def read(self, names: Sequence[str]) -> list[LedgerPage]:
        """Return pages of the ledger."""
        ...

    def swap(self, swaps: Sequence[Swap]) -> list[bool]:
        """Write each page that has not changed since it was read, each atomically. Returns which were written."""
        ...


class StoreObserver(Protocol):
    """Receives the result of each call to a server, for metrics and traces.

    Its methods never block or raise. Several threads may call it at once.
    """

    def called(self, seconds: float, groups: int) -> None:
        """Record that a call was answered. It carried this many groups of checks; 0 for a reset or a refund."""

    def failed(self, error: StoreError, seconds: float, groups: int) -> None:
        """Record that a call failed, or that a group waited for a call until its deadline."""

    def breaker(self, node: str, state: State | Literal["gone"]) -> None:
        """Record the state of the breaker of a server (`host:port`, or a socket's path); gone: it is no longer used."""


@runtime_checkable
class AsyncStore(Protocol):
    """The async version of `Store`, with the same guarantees for any number of tasks."""

    async def check(self, groups: Sequence[Group]) -> Sequence[Answer]: ...

    async def refund(self, charges: Sequence[Charge]) -> None: ...

    async def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class AsyncCompilingStore(AsyncStore, Protocol):
    """A store that compiles plans into programs whose decisions are awaited."""

    def compile(self, plan: Plan, states: WarningStates | None = None, shown: Plan | None = None) -> Program: ...


@runtime_checkable
class AsyncReservingStore(AsyncStore, Protocol):
    """The async version of `ReservingStore`."""

    async def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None: ...

    async def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool: ...

    async def claim_reservation(self, reservation_id: str, cost: Cost) -> Claim | None: ...

    async def claim_expired(self) -> ExpiredClaims: ...

    async def settle(self, settled: Sequence[ClaimedAdjustments]) -> Sequence[Sequence[int]]: ...

    async def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Sequence[int] | None: ...


@runtime_checkable
class AsyncAtomicReservingStore(AsyncReservingStore, Protocol):
    """The async version of `AtomicReservingStore`."""

    def new_reservation_id(self, charge: Group) -> str | None: ...

    async def reserve(self, reservation_id: str, pending: Record, ttl_us: int) -> ReservationAnswer: ...


@runtime_checkable
class AsyncSlotStore(AsyncStore, Protocol):
    """The async version of `SlotStore`."""

    async def release_slots(self, held: Sequence[Check]) -> Sequence[bool]: ...

    async def renew_slots(self, held: Sequence[Check]) -> Sequence[bool]: ...


@runtime_checkable
class AsyncClearingStore(AsyncStore, Protocol):
    """The async version of `ClearingStore`."""

    async def clear_some(self, cursor: Any = None) -> Any: ...


@runtime_checkable
class AsyncHeartbeatStore(AsyncStore, Protocol):
    """The async version of `HeartbeatStore`."""

    async def record_heartbeat(self, name: str, node: str, ttl_us: int) -> Standing: ...


@runtime_checkable
class AsyncPeerStore(AsyncStore, Protocol):
    """The async version of `PeerStore`."""

    async def counts(self, checks: Sequence[Check]) -> list[Counted | None]: ...

    async def read(self, names: Sequence[str]) -> list[LedgerPage]: ...

    async def swap(self, swaps: Sequence[Swap]) -> list[bool]: ...
