"""Reserve, settle, refund: what a caller sees, of both kinds of limiter, in memory."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidCheck, Limiter, Rule, Settlement, StoreUnavailable
from headgate.core.check import Answer, Charge, Check, Client, Group
from headgate.core.cost import Cost
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.core.reservation import LATE_US, Claim, ClaimedAdjustments, Record, ReservationAnswer
from headgate.errors import StoreTimeout
from headgate.rules.penalties import Penalties
from headgate.rules.snapshot import Snapshot
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.program import Program, group_program
from headgate.testing import FakeClock

START = 1_700_000_040  # the first moment of a minute
WINDOWS = ("fixed_window", "sliding_window_log", "sliding_window_counter")
BUCKETS = ("token_bucket", "leaky_bucket", "gcra")


class Either:
    """A Limiter, or an AsyncLimiter whose calls are awaited."""

    def __init__(self, kind: str, clock: FakeClock) -> None:
        self.is_async, self.clock = kind == "AsyncLimiter", clock

    def open(self, rules: Any, **options: Any) -> Any:
        options.setdefault("clock", self.clock)
        limiter = AsyncLimiter if self.is_async else Limiter
        return limiter(rules, **options)

    def __call__(self, value: Any) -> Any:
        async def awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
            return await coroutine if inspect.isawaitable(coroutine) else coroutine

        return asyncio.run(awaited(value)) if self.is_async else value


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(params=["Limiter", "AsyncLimiter"])
def do(request: pytest.FixtureRequest, clock: FakeClock) -> Either:
    return Either(request.param, clock)


@pytest.mark.parametrize("algorithm", WINDOWS + BUCKETS)
def test_what_was_too_much_is_given_back(do: Either, algorithm: str) -> None:
    limiter = do.open(f"1000/minute {algorithm}")
    reservation = do(limiter.reserve("alice", cost=600))
    assert reservation
    assert reservation.cost == 600
    assert reservation.decision.remaining == 400
    assert not do(limiter.reserve("alice", cost=401))
    settlement = do(reservation.settle(150))
    assert settlement
    assert settlement == Settlement("settled", cost=150, reserved=600)
    assert (settlement.refunded, settlement.surcharged) == (450, 0)
    assert do(limiter.peek("alice")).remaining == 850


@pytest.mark.parametrize("algorithm", WINDOWS + BUCKETS)
def test_what_is_more_is_charged_and_waited_for(do: Either, clock: FakeClock, algorithm: str) -> None:
    limiter = do.open(f"1000/minute {algorithm}")
    settlement = do(do(limiter.reserve("alice", cost=100)).settle(3_000))
    assert (settlement.refunded, settlement.surcharged) == (0, 2_900)
    refused = do(limiter.check("alice"))
    assert (refused.allowed, refused.remaining) == (False, 0)
    if algorithm in BUCKETS:
        assert refused.retry_after == 120.06  # 2,001 tokens at 1,000 a minute
    clock.advance(refused.retry_after - 0.001)
    assert not do(limiter.check("alice"))
    clock.advance(0.001)
    assert do(limiter.check("alice"))


def test_only_the_first_settlement_counts(do: Either) -> None:
    limiter, other = (do.open("10/minute", store=store) for store in [MemoryStore(clock=do.clock)] * 2)
    reservation = do(limiter.reserve("alice", cost=5))
    assert do(other.settle(reservation.id, 2))  # another limiter, as another process would
    assert do(reservation.settle(9)) == Settlement("gone", cost=9)
    assert not do(reservation.refund())
    assert not do(limiter.settle("no-such-reservation", 1))
    assert do(limiter.peek("alice")).remaining == 8


def test_a_refund_gives_back_all_of_it(do: Either) -> None:
    limiter = do.open("10/minute; 100/hour")
    first, second = do(limiter.reserve("alice", cost=5)), do(limiter.reserve("alice", cost=5))
    assert do(first.refund()) == Settlement("settled", cost=0, reserved=5)
    assert do(limiter.refund(second.id))
    assert [status.remaining for status in do(limiter.peek("alice")).limits] == [10, 100]


@pytest.mark.parametrize("algorithm", WINDOWS + BUCKETS)
@pytest.mark.parametrize("method", ["check", "peek", "reserve"])
def test_one_that_is_never_settled_expires(do: Either, clock: FakeClock, algorithm: str, method: str) -> None:
    limiter = do.open(f"100/hour {algorithm}")
    do(limiter.check("alice", cost=50))
    do(limiter.reserve("alice", cost=50, ttl=5))
    clock.advance(4.999)
    assert not do(limiter.check("alice"))
    clock.advance(0.001)
    answer = do(getattr(limiter, method)("alice", cost=50))
    assert answer
    assert getattr(answer, "decision", answer).remaining in ((50,) if method == "peek" else (0,))


@pytest.mark.parametrize(
    "rules", ["10/hour", [Rule(id="calls", quota="10/hour"), Rule(id="tenants", quota="9/hour", dimension="tenant")]]
)
def test_one_that_expires_is_given_back_on_the_short_way_that_was_taken_before(
    do: Either, clock: FakeClock, rules: Any
) -> None:
    limiter = do.open(rules)
    do(limiter.check("alice", cost=1))  # with facts or without, this way is remembered
    do(limiter.decide({"user": "alice"}, cost=1))
    do(limiter.reserve("alice", cost=8, ttl=5))
    assert not do(limiter.check("alice"))
    clock.advance(5)
    assert do(limiter.decide({"user": "alice"}, cost=4))
    do(limiter.reserve("alice", cost=4, ttl=5))
    assert not do(limiter.check("alice"))
    clock.advance(5)
    assert do(limiter.check("alice", cost=4))


def test_what_another_limiter_left_behind_is_found_by_whoever_reserves(do: Either, clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    crashed, other = do.open("10/minute", store=store), do.open("10/minute", store=store)
    do(crashed.reserve("alice", cost=10, ttl=5))
    assert not do(other.reserve("alice"))
    clock.advance(5)
    assert do(other.reserve("alice"))


def test_more_than_one_batch_expires(do: Either, clock: FakeClock) -> None:
    limiter = do.open("1000/hour fixed_window")
    for _ in range(500):
        do(limiter.reserve("alice", cost=2, ttl=5))
    assert do(limiter.peek("alice")).remaining == 0
    clock.advance(5)
    assert do(limiter.peek("alice")).remaining == 1_000


@pytest.mark.parametrize("swept", [True, False])
def test_a_late_settlement_charges_all_of_it(do: Either, clock: FakeClock, swept: bool) -> None:
    limiter = do.open("100/hour fixed_window")
    reservation = do(limiter.reserve("alice", cost=50, ttl=5))
    clock.advance(5)
    if swept:
        assert do(limiter.peek("alice")).remaining == 100
    settlement = do(reservation.settle(30))
    assert settlement
    assert settlement.reason == "late"
    assert do(limiter.peek("alice")).remaining == 70
    assert not do(reservation.settle(30))


def test_an_hour_after_it_expired_it_is_gone(do: Either, clock: FakeClock) -> None:
    limiter = do.open("100/day fixed_window")
    reservation = do(limiter.reserve("alice", cost=50, ttl=5))
    clock.advance(5)
    do(limiter.peek("alice"))
    clock.advance(LATE_US / 1_000_000)
    assert do(reservation.settle(30)).reason == "gone"


def test_the_costs_of_rules_apply_to_what_it_really_cost(do: Either) -> None:
    rules = [
        Rule(id="tokens", quota="1000/minute"),
        Rule(id="double", quota="1000/minute", cost=2, dimension="tenant"),
        Rule(id="shadow", quota="100/minute", action="log_only"),
    ]
    limiter = do.open(rules)
    reservation = do(limiter.reserve(user="alice", tenant="acme", cost=200))
    do(reservation.settle(50))
    left = {status.rule: status.remaining for status in do(limiter.peek(user="alice", tenant="acme")).limits}
    assert left == {"tokens": 950, "double": 900, "shadow": 100}  # the shadow did not fit, and was not charged


@pytest.mark.parametrize("algorithm", WINDOWS + BUCKETS)
def test_nothing_can_be_reserved_and_settled_for_something(do: Either, algorithm: str) -> None:
    limiter = do.open(f"10/minute {algorithm}")
    assert do(do(limiter.reserve("alice", cost=0)).settle(4))
    assert do(limiter.peek("alice")).remaining == 6


def test_a_refusal_has_nothing_to_settle(do: Either) -> None:
    limiter = do.open("10/minute")
    reservation = do(limiter.reserve("alice", cost=11))
    assert not reservation
    assert reservation.decision.retry_after is None
    assert do(reservation.settle(5)) == Settlement("unrecorded", cost=5)
    assert do(limiter.peek("alice")).remaining == 10


def test_without_a_rule_there_is_nothing_to_settle(do: Either) -> None:
    limiter = do.open([Rule(id="x", quota="1/minute", endpoints=["/x"])])
    reservation = do(limiter.reserve(user="alice", endpoint="/y", cost=5))
    assert reservation
    assert do(reservation.settle(5)).reason == "unrecorded"


def test_a_reset_before_a_refund_gives_no_more_than_all(do: Either) -> None:
    for algorithm in WINDOWS + BUCKETS:
        limiter = do.open(f"10/minute {algorithm}")
        reservation = do(limiter.reserve("alice", cost=10))
        do(limiter.reset("alice"))
        do(reservation.refund())
        assert do(limiter.peek("alice")).remaining == 10


@pytest.mark.parametrize("cost", [-1, 1.5, True, "1", 2**53])
def test_a_cost_that_makes_no_sense(do: Either, cost: Any) -> None:
    limiter = do.open("10/minute")
    reservation = do(limiter.reserve("alice"))
    with pytest.raises(InvalidCheck, match="cost: must be a whole number"):
        do(reservation.settle(cost))
    assert do(reservation.settle(0))  # it is still there


@pytest.mark.parametrize("ttl", [0, -1, 0.0001, 604_801, float("nan"), float("inf"), "60", None, True])
def test_a_time_to_live_that_makes_no_sense(do: Either, ttl: Any) -> None:
    limiter = do.open("10/minute")
    with pytest.raises(InvalidCheck, match=r"ttl: must be from 0\.001 to 604800"):
        do(limiter.reserve("alice", ttl=ttl))
    assert do(limiter.peek("alice")).remaining == 10


@pytest.mark.parametrize("name", ["", None, 7, "é", "x" * 129])
def test_an_id_that_makes_no_sense(do: Either, name: Any) -> None:
    with pytest.raises(InvalidCheck, match="reservation_id: must be the id of a Reservation"):
        do(do.open("10/minute").settle(name, 1))


def test_ids_cannot_be_guessed() -> None:
    limiter = Limiter("1000/minute")
    ids = {limiter.reserve("alice").id for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one) >= 24 for one in ids)


# As context managers


def within(limiter: Any, settle: int | None = None, error: BaseException | None = None) -> None:
    """A block with a reservation of 5, which is settled, or raises."""
    if isinstance(limiter, Limiter):
        with limiter.reserve("alice", cost=5) as reservation:
            if settle is not None:
                reservation.settle(settle)
            if error is not None:
                raise error
        return

    async def block() -> None:
        async with await limiter.reserve("alice", cost=5) as reservation:
            if settle is not None:
                await reservation.settle(settle)
            if error is not None:
                raise error

    asyncio.run(block())


def test_a_block_that_ends_settles_with_the_estimate(do: Either, clock: FakeClock) -> None:
    limiter = do.open("10/hour")
    within(limiter)
    clock.advance(60)
    assert do(limiter.peek("alice")).remaining == 5  # it does not expire any more


def test_a_block_that_fails_gives_back_the_estimate(do: Either) -> None:
    limiter = do.open("10/hour")
    with pytest.raises(LookupError):
        within(limiter, error=LookupError())
    assert do(limiter.peek("alice")).remaining == 10


@pytest.mark.parametrize("error", [None, LookupError()])
def test_a_block_that_settled_is_settled(do: Either, error: LookupError | None) -> None:
    limiter = do.open("10/hour")
    if error is None:
        within(limiter, settle=2)
    else:
        with pytest.raises(LookupError):
            within(limiter, settle=2, error=error)
    assert do(limiter.peek("alice")).remaining == 8


def test_a_task_that_is_cancelled_gives_back_the_estimate(clock: FakeClock) -> None:
    async def main() -> int:
        limiter = AsyncLimiter("10/hour", clock=clock)
        entered = asyncio.Event()

        async def work() -> None:
            async with await limiter.reserve("alice", cost=5):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await limiter.peek("alice")).remaining

    assert asyncio.run(main()) == 10


def test_a_settlement_goes_on_when_its_caller_is_cancelled(clock: FakeClock) -> None:
    class Slow(AsyncMemoryStore):
        async def claim_reservation(self, reservation_id: str, cost: Cost) -> Claim | None:
            found = await super().claim_reservation(reservation_id, cost)
            claimed.set()
            await going_on.wait()
            return found

    async def main() -> int:
        limiter = AsyncLimiter("10/hour", store=Slow(MemoryStore(clock=clock)), clock=clock)
        reservation = await limiter.reserve("alice", cost=5)
        task = asyncio.create_task(reservation.settle(1))
        await claimed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        going_on.set()
        await limiter.close()
        return (await limiter.peek("alice")).remaining

    claimed, going_on = asyncio.Event(), asyncio.Event()
    assert asyncio.run(main()) == 9


# When the store is away, or cannot do it


class Faulty(MemoryStore):
    """Fails at the methods that it is told to."""

    failing: frozenset[str] = frozenset()

    def _fail(self, name: str) -> None:
        if name in self.failing:
            raise StoreUnavailable(f"no {name} today")

    def check(self, groups: Sequence[Group]) -> list[Answer]:
        self._fail("check")
        return super().check(groups)

    def compile(self, plan: Plan, states: WarningStates | None = None, told: Plan | None = None) -> Program:
        return group_program(self.check, plan, states, told)

    def new_reservation_id(self, charge: Group) -> None:
        """It cannot do it in one step, as with shards."""

    def save_reservation(self, reservation_id: str, record: str, ttl_us: int) -> None:
        self._fail("hold")
        super().save_reservation(reservation_id, record, ttl_us)

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> bool:
        self._fail("renew")
        renewed = super().renew(reservation_id, record, ttl_us)
        if "renew later" in self.failing:
            raise StoreTimeout("it was renewed, but nobody knows")
        return renewed

    def claim_reservation(self, reservation_id: str, cost: Cost) -> Claim | None:
        self._fail("claim")
        return super().claim_reservation(reservation_id, cost)

    def claim_expired(self) -> Any:
        self._fail("expire")
        return super().claim_expired()

    def settle(self, settled: Sequence[ClaimedAdjustments]) -> list[list[int]]:
        self._fail("settle")
        given = super().settle(settled)
        self._fail("settle later")
        return given


@pytest.fixture
def faulty(clock: FakeClock) -> Faulty:
    return Faulty(clock=clock)


def test_a_store_that_is_away_leaves_it_to_the_failure_mode(do: Either, faulty: Faulty) -> None:
    limiter = do.open("10/minute", store=faulty)
    faulty.failing = frozenset({"check", "expire"})
    reservation = do(limiter.reserve("alice", cost=5))
    assert reservation
    assert reservation.decision.reason == "fail_open"
    faulty.failing = frozenset()
    assert do(reservation.settle(7)).reason == "unrecorded"
    assert do(limiter.peek("alice")).remaining == 10
    closed = do.open("10/minute", store=faulty, failure_mode="closed")
    faulty.failing = frozenset({"check"})
    assert not do(closed.reserve("alice"))


@pytest.mark.parametrize("method", ["claim", "settle"])
def test_a_settlement_never_raises_what_the_store_does(
    do: Either, faulty: Faulty, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    limiter = do.open("10/minute", store=faulty)
    reservation = do(limiter.reserve("alice", cost=5))
    faulty.failing = frozenset({method})
    settlement = do(reservation.settle(2))
    assert not settlement
    assert settlement.reason == "store_error"
    assert f"no {method} today" in caplog.text
    assert do(limiter.peek("alice")).remaining == 5  # the estimate stands


@pytest.mark.parametrize("method", ["settle", "settle later"])
@pytest.mark.parametrize("cost", [2, 8])
def test_a_settlement_that_was_cut_off_is_completed_by_any_limiter(
    do: Either, faulty: Faulty, clock: FakeClock, method: str, cost: int
) -> None:
    """Once, ten seconds after its claim; and until then, nobody else can settle it."""
    limiter, other = do.open("10/hour", store=faulty), do.open("10/hour", store=faulty)
    reservation = do(limiter.reserve("alice", cost=5, ttl=60))
    faulty.failing = frozenset({method})
    assert do(reservation.settle(cost)).reason == "store_error"
    faulty.failing = frozenset()
    assert do(other.settle(reservation.id, 1)).reason == "gone"
    assert do(other.peek("alice")).remaining == (5 if method == "settle" else 10 - cost)
    clock.advance(10)
    do(other.reserve("bob", cost=0))
    assert do(other.peek("alice")).remaining == 10 - cost
    assert do(other.settle(reservation.id, 1)).reason == "gone"
    clock.advance(60)
    do(other.reserve("bob", cost=0))
    assert do(other.peek("alice")).remaining == 10 - cost


def test_an_expired_one_whose_refund_was_cut_off_is_refunded_by_who_settles_it(
    do: Either, faulty: Faulty, clock: FakeClock
) -> None:
    limiter, other = do.open("10/hour", store=faulty), do.open("10/hour", store=faulty)
    reservation = do(limiter.reserve("alice", cost=5, ttl=60))
    clock.advance(60)
    faulty.failing = frozenset({"settle"})
    do(limiter.reserve("bob", cost=0))
    assert do(limiter.peek("alice")).remaining == 5
    faulty.failing = frozenset()
    settlement = do(other.settle(reservation.id, 3))
    assert (settlement.reason, settlement.refunded) == ("late", 0)
    assert do(other.peek("alice")).remaining == 7
    clock.advance(10)
    do(limiter.reserve("bob", cost=0))
    assert do(limiter.peek("alice")).remaining == 7


def test_a_block_whose_settlement_failed_tries_that_again_and_not_the_estimate(faulty: Faulty) -> None:
    limiter = Limiter("10/minute", store=faulty)
    with limiter.reserve("alice", cost=5) as reservation:
        faulty.failing = frozenset({"claim"})
        reservation.settle(2)
        faulty.failing = frozenset()
    assert limiter.peek("alice").remaining == 8


@pytest.mark.parametrize("method", ["renew", "renew later"])
def test_a_record_that_was_perhaps_not_renewed_can_be_settled(
    do: Either, faulty: Faulty, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    limiter = do.open("10/minute", store=faulty)
    faulty.failing = frozenset({method})
    reservation = do(limiter.reserve("alice", cost=5))
    assert reservation
    assert "may expire after 10 s" in caplog.text
    assert do(reservation.settle(2)) == Settlement("settled", cost=2, reserved=5)
    assert do(limiter.peek("alice")).remaining == 8


RULES = [
    Rule(id="own", quota="100/hour gcra", cost=2),
    Rule(id="all", quota="100/hour fixed_window", dimension="global", shards=3),
    Rule(id="shadow", quota="1/hour", action="log_only"),
]


@pytest.mark.parametrize("penalties", [None, Penalties(enabled=True)])
@pytest.mark.parametrize("charged", [True, False])
def test_one_that_was_cut_before_its_record_was_renewed_is_given_back(
    do: Either, clock: FakeClock, charged: bool, penalties: Penalties | None
) -> None:
    """What a process leaves behind that dies before the charge, or right after it."""
    store = Faulty(clock=clock)
    rules: Any = RULES
    if penalties is not None:  # they do not go with shards
        rules = Snapshot([replace(rule, shards=1) for rule in RULES], penalties=penalties)
    limiter = do.open(rules, store=store)
    whole = do(limiter.peek(user="alice"))
    store.failing = frozenset({"renew"} if charged else {"check"})
    reservation = do(limiter.reserve(user="alice", cost=20))
    assert reservation.recorded == charged
    store.failing = frozenset()
    assert (do(limiter.peek(user="alice")) == whole) != charged
    clock.advance(10)
    do(limiter.reserve(user="bob", cost=0))
    left = {status.rule: status.remaining for status in do(limiter.peek(user="alice")).limits}
    assert left == {"own": 100, "all": 100, "shadow": 1}
    if charged:
        assert do(reservation.settle(3)).reason == "late"
        left = {status.rule: status.remaining for status in do(limiter.peek(user="alice")).limits}
        assert (left["own"], left["all"]) == (94, 97)


def test_a_charge_that_comes_after_its_record_expired_is_charged_when_it_is_settled(clock: FakeClock) -> None:
    class Slow(MemoryStore):
        def new_reservation_id(self, charge: Group) -> None:
            """It cannot do it in one step, as with shards."""

        def check(self, groups: Sequence[Group]) -> list[Answer]:
            if slow:
                slow.clear()
                clock.advance(11)
                other.reserve("bob")  # which gives back what has expired
            return super().check(groups)

        def compile(self, plan: Plan, states: WarningStates | None = None, told: Plan | None = None) -> Program:
            return group_program(self.check, plan, states, told)

    slow: list[bool] = []
    store = Slow(clock=clock)
    other = Limiter("10/hour", store=store, clock=clock)
    limiter = Limiter("10/hour", store=store, clock=clock)
    slow.append(True)
    reservation = limiter.reserve("alice", cost=5)
    assert reservation
    assert limiter.peek("alice").remaining == 10
    assert reservation.settle(2).reason == "late"
    assert limiter.peek("alice").remaining == 8


class Mute(MemoryStore):
    """Does what it is asked, and its answer is lost."""

    mute = False

    def reserve(self, reservation_id: str, pending: Record, ttl_us: int) -> ReservationAnswer:
        answer = super().reserve(reservation_id, pending, ttl_us)
        if self.mute:
            raise StoreTimeout("no answer")
        return answer


def test_one_whose_answer_was_lost_is_given_back_long_before_its_ttl(do: Either, clock: FakeClock) -> None:
    store = Mute(clock=clock)
    limiter = do.open("10/day fixed_window", store=store)
    store.mute = True
    reservation = do(limiter.reserve("alice", cost=5, ttl=3_600))
    assert (reservation.decision.reason, reservation.recorded) == ("fail_open", False)
    store.mute = False
    assert do(limiter.peek("alice")).remaining == 5
    clock.advance(10)
    assert do(limiter.peek("alice")).remaining == 10
    assert store.claim_expired() == ([], None)


def test_a_store_without_room_for_a_record_charges_nothing(do: Either, clock: FakeClock) -> None:
    store = MemoryStore(clock=clock, max_keys=1)
    limiter = do.open("10/day fixed_window", store=store)
    assert do(limiter.reserve("alice", cost=3)).recorded
    assert not do(limiter.reserve("alice", cost=3)).recorded
    assert do(limiter.peek("alice")).remaining == 7


@pytest.mark.parametrize("kind", [MemoryStore, Faulty])
def test_a_refused_one_leaves_no_record(do: Either, clock: FakeClock, kind: type[MemoryStore]) -> None:
    """Whether it is charged and recorded in one step, or the record is written before."""
    store = kind(clock=clock)
    limiter = do.open("10/hour", store=store)
    assert not do(limiter.reserve("alice", cost=11))
    assert store.claim_expired() == ([], None)


def test_the_decision_of_a_reservation_is_not_given_back_beside_it(do: Either) -> None:
    limiter = do.open("10/hour fixed_window")
    do(limiter.check("alice", cost=5))
    reservation = do(limiter.reserve("alice", cost=5))
    do(limiter.give_back(reservation.decision))
    do(reservation.refund())
    assert do(limiter.peek("alice")).remaining == 5


@pytest.mark.parametrize("steps", range(12))
def test_a_caller_that_is_cancelled_at_any_await_is_charged_nothing(clock: FakeClock, steps: int) -> None:
    class Yielding(AsyncMemoryStore):
        """Gives way before and after everything that it does."""

        async def _later(self, name: str, *arguments: Any) -> Any:
            await asyncio.sleep(0)
            result = await getattr(super(), name)(*arguments)
            await asyncio.sleep(0)
            return result

        async def check(self, groups: Sequence[Group]) -> list[Answer]:
            return await self._later("check", groups)  # type: ignore[no-any-return]

        async def save_reservation(self, *arguments: Any) -> None:
            await self._later("hold", *arguments)

        async def renew(self, *arguments: Any) -> bool:
            return await self._later("renew", *arguments)  # type: ignore[no-any-return]

    async def main() -> int:
        limiter = AsyncLimiter("10/hour", store=Yielding(MemoryStore(clock=clock)), clock=clock)
        task = asyncio.create_task(limiter.reserve("alice", cost=5))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await (await task).refund()
        await limiter.close()
        return (await limiter.peek("alice")).remaining

    assert asyncio.run(main()) == 10


def test_a_store_that_cannot_look_for_expired_ones_is_asked_again(
    do: Either, faulty: Faulty, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    limiter = do.open("10/hour", store=faulty)
    do(limiter.reserve("alice", cost=10, ttl=5))
    clock.advance(5)
    faulty.failing = frozenset({"expire"})
    assert not do(limiter.check("alice"))
    assert "no expire today" in caplog.text
    faulty.failing = frozenset()
    clock.advance(1)
    assert do(limiter.check("alice"))


def test_a_full_store_takes_no_more_reservations_and_charges_nothing(do: Either, clock: FakeClock) -> None:
    limiter = do.open("10/hour", store=MemoryStore(clock=clock, max_keys=2))
    reservations = [do(limiter.reserve("alice")) for _ in range(3)]
    assert all(reservations)
    assert [do(each.refund()).reason for each in reservations] == ["settled", "settled", "unrecorded"]
    assert do(limiter.peek("alice")).remaining == 10


class Plain:
    """Somebody's store from before there were reservations."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def check(self, groups: Sequence[Group]) -> list[Answer]:
        return self._store.check(groups)

    def refund(self, charges: Sequence[Charge]) -> None:
        self._store.refund(charges)

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None:
        self._store.reset(checks, clients)

    def close(self) -> None:
        self._store.close()


def test_a_store_without_reservations_says_so_and_does_all_else(clock: FakeClock) -> None:
    limiter = Limiter("10/minute", store=Plain(MemoryStore(clock=clock)))
    with pytest.raises(
        InvalidCheck,
        match="Plain keeps no reservations: it lacks save_reservation, renew, claim_reservation, claim_expired, "
        "settle or adjust",
    ):
        limiter.reserve("alice")
    with pytest.raises(InvalidCheck, match="Plain keeps no reservations"):
        limiter.settle("some-id", 1)
    assert limiter.check("alice").remaining == 9


def test_one_that_only_a_shadow_would_refuse_is_recorded(do: Either) -> None:
    limiter = do.open([Rule(id="shadow", quota="1/minute", action="log_only")])
    do(limiter.check(user="alice"))
    reservation = do(limiter.reserve(user="alice"))
    assert reservation
    assert reservation.decision.reason == "shadow"
    assert do(reservation.settle(1)).reason == "settled"
