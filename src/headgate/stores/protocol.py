"""What a store promises. Write your own against this, and prove it with `headgate.testing.StoreContract`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from headgate.core.alike import AsyncAlike, Pattern
from headgate.core.check import Answer, Charge, Check, Client, Group
from headgate.core.decision import States
from headgate.core.ledger import Counted, Page, Swap
from headgate.core.plan import Plan
from headgate.core.reservation import Claim, Expired
from headgate.core.share import Standing
from headgate.stores.program import Program


@runtime_checkable
class Store(Protocol):
    """Evaluates groups of checks atomically, from any number of threads. Faults raise `StoreError`."""

    def check(self, groups: Sequence[Group]) -> Sequence[Answer]:
        """Decide each group by itself: charge all its checks if every enforced one fits, else none.

        Answers come in the order of the groups. A conflict concerns its own group only. So does a fault that is among
        the answers; one that kept all groups from being decided is raised.
        """
        ...

    def refund(self, charges: Sequence[Charge]) -> None:
        """Undo charges that an earlier `check` made. A charge whose state has since expired is left alone."""
        ...

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        """Forget the state of these checks' keys, and the violations and blocks of these clients.

        The checks' quota and cost do not matter.
        """
        ...

    def close(self) -> None:
        """Give back connections. A closed store is not used again."""
        ...


@runtime_checkable
class CompilingStore(Store, Protocol):
    """A store that compiles plans. A program is made for any other of its `check`."""

    def compile(self, plan: Plan, states: States | None = None, told: Plan | None = None) -> Program:
        """Return the program that decides requests of a plan.

        Decisions are given `states`. They tell of `told`, if that is another plan than the one that is charged: of
        larger limits, of which the same remains.
        """
        ...


@runtime_checkable
class ReservingStore(Store, Protocol):
    """A store that keeps reservations: what `Limiter.reserve` needs. All times are by the store's own clock."""

    def hold(self, reservation_id: str, record: str, ttl_us: int) -> None:
        """Keep the record of a reservation. It expires after `ttl_us`, and is forgotten an hour after that."""
        ...

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        """Replace the record of a reservation that nobody has claimed or given back, and let it live for `ttl_us` from
        now. Returns whether there was one."""
        ...

    def claim(self, reservation_id: str) -> Claim | None:
        """Take out a reservation, in one atomic step: of all who try, one gets it, and the others None."""
        ...

    def expire(self) -> Expired:
        """Take out reservations that have expired, a hundred or so, for the caller to give back.

        Each is given to one caller. It can still be claimed for an hour: then it is `LATE`.
        """
        ...

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Sequence[int] | None:
        """Undo charges, as `refund` does, and charge checks whether they fit or not.

        A charge with a reservation's mark (`Check.reservation`) leaves a bucket as if it had not been made, however
        many overlap it; a refund of 0 says that there is nothing left to give back. Other charges that overlapped in
        time give back no more together than was lost. A window counts a surcharge above its limit if need be; a
        bucket goes into debt. Returns how much of each refund was given back; None: that is not known.
        """
        ...


@runtime_checkable
class BeatingStore(Store, Protocol):
    """A store that knows which nodes use it: what failure mode `local` needs to count by shares."""

    def beat(self, name: str, node: str, ttl_us: int) -> Standing:
        """Say that a node is alive, of those that go by `name`, for `ttl_us` by the store's clock; 0: it leaves.

        Returns how many are alive, and the node's place among them by its id.
        """
        ...


@runtime_checkable
class PeerStore(Store, Protocol):
    """A store that other regions can read: what `headgate.regions` needs of each."""

    def counts(self, checks: Sequence[Check]) -> list[Counted | None]:
        """What the keys of these checks have counted, of `fixed_window` and `sliding_window_counter`; None: nothing.

        It may be of a bucket of time that is over.
        """
        ...

    def read(self, names: Sequence[str]) -> list[Page]:
        """Pages of the ledger."""
        ...

    def swap(self, swaps: Sequence[Swap]) -> list[bool]:
        """Write each of these pages if it still says what it said before, in one atomic step; whether it did."""
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

    def compile(self, plan: Plan, states: States | None = None, told: Plan | None = None) -> Program: ...


@runtime_checkable
class AsyncAlikeStore(AsyncStore, Protocol):
    """A store that has a short way for many requests that are alike."""

    @property
    def most_alike(self) -> int:
        """How many can be asked at a time."""
        ...

    def alike(self, pattern: Pattern) -> AsyncAlike | None:
        """The short way from subjects to answers: each request is decided by itself, in order, as by `check`.

        It raises `StoreError` if none was decided, or nobody knows which. None: there is no short way.
        """
        ...


@runtime_checkable
class AsyncReservingStore(AsyncStore, Protocol):
    """`ReservingStore`, awaited."""

    async def hold(self, reservation_id: str, record: str, ttl_us: int) -> None: ...

    async def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool: ...

    async def claim(self, reservation_id: str) -> Claim | None: ...

    async def expire(self) -> Expired: ...

    async def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check] = ()) -> Sequence[int] | None: ...


@runtime_checkable
class AsyncBeatingStore(AsyncStore, Protocol):
    """`BeatingStore`, awaited."""

    async def beat(self, name: str, node: str, ttl_us: int) -> Standing: ...


@runtime_checkable
class AsyncPeerStore(AsyncStore, Protocol):
    """`PeerStore`, awaited."""

    async def counts(self, checks: Sequence[Check]) -> list[Counted | None]: ...

    async def read(self, names: Sequence[str]) -> list[Page]: ...

    async def swap(self, swaps: Sequence[Swap]) -> list[bool]: ...
