"""acquire: slots are held until they are released or expire, in one step with all rates."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from threading import Event, Thread
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidCheck, InvalidRule, Limiter, Quota, RateLimited, Rule, Slot
from headgate.core.check import Answer, Group
from headgate.core.slot import encode_slot
from headgate.limiter import slot_records
from headgate.limiter.programs import Programs
from headgate.rules.plan import RulePlan
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.program import Program
from headgate.testing import FakeClock
from tests.waiting import until

QUOTA = "2 concurrent ttl 10s"
RULES = [Rule(id="slots", quota=QUOTA), Rule(id="rate", quota="3/minute fixed_window")]


def remaining(limiter: Limiter, subject: str = "alice") -> dict[str, int]:
    return {status.rule: status.remaining for status in limiter.peek(subject).limits}


def test_a_block_holds_a_slot(clock: FakeClock) -> None:
    limiter = Limiter(QUOTA, clock=clock)
    with limiter.acquire("alice") as slot:
        assert (slot.is_held, slot.ttl, slot.decision.remaining, slot.decision.limit) == (True, 10.0, 1, 2)
        assert remaining(limiter) == {"default": 1}
        assert remaining(limiter, "bob") == {"default": 2}
    assert not slot.is_held
    assert remaining(limiter) == {"default": 2}


def test_a_block_that_fails_releases_its_slot(clock: FakeClock) -> None:
    limiter = Limiter(QUOTA, clock=clock)
    with pytest.raises(ZeroDivisionError), limiter.acquire("alice"):
        raise ZeroDivisionError
    assert remaining(limiter) == {"default": 2}


def test_who_finds_no_slot_is_refused(clock: FakeClock) -> None:
    limiter = Limiter(QUOTA, clock=clock)
    limiter.acquire("alice")
    clock.advance(1)
    limiter.acquire("alice")
    with pytest.raises(RateLimited) as refused:
        limiter.acquire("alice")
    decision = refused.value.decision
    assert (decision.rule, decision.reason, decision.retry_after) == ("default", "over_limit", 9.0)
    clock.advance(9)
    assert limiter.acquire("alice").is_held


def test_a_refusal_for_lack_of_a_slot_charges_no_rate(clock: FakeClock) -> None:
    limiter = Limiter(RULES, clock=clock)
    slots = [limiter.acquire("alice"), limiter.acquire("alice")]
    for _ in range(5):
        with pytest.raises(RateLimited):
            limiter.acquire("alice")
    assert remaining(limiter) == {"slots": 0, "rate": 1}
    slots[0].release()
    assert limiter.acquire("alice").is_held


def test_a_refusal_by_a_rate_takes_no_slot(clock: FakeClock) -> None:
    limiter = Limiter(RULES, clock=clock)
    for _ in range(3):
        limiter.acquire("alice").release()
    with pytest.raises(RateLimited) as refused:
        limiter.acquire("alice")
    assert refused.value.decision.rule == "rate"
    assert remaining(limiter) == {"slots": 2, "rate": 0}


def test_a_release_counts_once(clock: FakeClock) -> None:
    limiter = Limiter(QUOTA, clock=clock)
    first = limiter.acquire("alice")
    limiter.acquire("alice")
    assert [first.release(), first.release(), limiter.release(first.id)] == [True, False, False]
    assert remaining(limiter) == {"default": 1}


def test_another_process_can_renew_and_release_by_the_id(clock: FakeClock) -> None:
    limiter = Limiter(QUOTA, clock=clock)
    slot = limiter.acquire("alice")
    clock.advance(9)
    assert limiter.renew(slot.id)
    clock.advance(9)
    assert remaining(limiter) == {"default": 1}
    assert limiter.release(slot.id)
    assert not slot.release()
    assert not limiter.renew(slot.id)
    with pytest.raises(InvalidCheck, match="must be the id of a slot"):
        limiter.release("alice")


@pytest.mark.parametrize("slot_id", [None, 5, b"s1.", [], Slot])
def test_what_is_not_an_id_is_refused(clock: FakeClock, slot_id: Any) -> None:
    limiter = Limiter(QUOTA, clock=clock)
    for call in (limiter.release, limiter.renew):
        with pytest.raises(InvalidCheck, match="must be the id of a slot"):
            call(slot_id)


def test_a_slot_that_expired_is_lost(clock: FakeClock) -> None:
    limiter = Limiter(QUOTA, clock=clock)
    slot = limiter.acquire("alice")
    clock.advance(10)
    assert (slot.renew(), slot.is_held, slot.is_lost) == (False, False, True)
    assert not slot.release()


def test_where_no_rule_limits_concurrency_there_is_nothing_to_release(clock: FakeClock) -> None:
    limiter = Limiter("1/minute", clock=clock)
    with limiter.acquire("alice") as slot:
        assert (slot.is_held, slot.id, slot.ttl, slot.renew(), slot.release()) == (False, "", None, False, False)
    with pytest.raises(RateLimited):
        limiter.acquire("alice")


@pytest.mark.parametrize("call", ["check", "wait", "reserve"])
def test_what_holds_no_slot_says_to_use_acquire(clock: FakeClock, call: str) -> None:
    limiter = Limiter(RULES, clock=clock)
    with pytest.raises(InvalidCheck, match=r"rule 'slots' limits concurrency: .*use acquire"):
        getattr(limiter, call)("alice")
    with pytest.raises(InvalidCheck, match="use acquire"):
        limiter.check_many(["alice"])
    assert remaining(limiter) == {"slots": 2, "rate": 3}
    assert limiter.check("alice", cost=0).allowed


def test_a_slot_may_cost_more(clock: FakeClock) -> None:
    limiter = Limiter("5 concurrent", clock=clock)
    with limiter.acquire("alice", cost=4):
        assert remaining(limiter) == {"default": 1}
        with pytest.raises(RateLimited):
            limiter.acquire("alice", cost=2)
    with pytest.raises(RateLimited) as never:
        limiter.acquire("alice", cost=6, wait=100)
    assert never.value.decision.retry_after is None
    assert clock.now_us() == FakeClock(1_700_000_040.0).now_us()


def test_a_shadow_counts_and_refuses_nobody(clock: FakeClock) -> None:
    limiter = Limiter([Rule(id="slots", quota="1 concurrent", action="log_only")], clock=clock)
    with limiter.acquire("alice") as first, limiter.acquire("alice") as second:
        assert (first.decision.reason, second.decision.reason) == ("within_limit", "shadow")
    assert remaining(limiter) == {"slots": 1}


def test_an_override_has_the_same_slots(clock: FakeClock) -> None:
    from headgate.rules.snapshot import Snapshot
    from headgate.rules.users import Override, User

    users = (User(id="alice", overrides=(Override(rule="slots", limit=3, window=60.0),)),)
    limiter = Limiter(Snapshot([Rule(id="slots", quota=QUOTA)], users=users), clock=clock)
    assert limiter.acquire("alice").ttl == 60.0
    assert limiter.peek("alice").limit == 3
    Limiter(Snapshot([Rule(id="slots", quota=QUOTA)]), clock=clock)
    assert limiter.snapshot.plan({"user": "alice"}, clock).limits[0].key_template.endswith(":concurrency")


def test_giving_a_decision_back_releases_its_slot(clock: FakeClock) -> None:
    limiter = Limiter(RULES, clock=clock)
    decision = limiter.decide({"user": "alice"}, slots="take")
    assert isinstance(decision.slot, Slot)
    limiter.give_back(decision)
    assert remaining(limiter) == {"slots": 2, "rate": 3}


def test_rules_without_slots_decide_what_cannot_be_released(clock: FakeClock) -> None:
    limiter = Limiter(RULES, clock=clock)
    decision = limiter.decide({"user": "alice"}, slots="skip")
    assert [status.rule for status in decision.limits] == ["rate"]
    alone = Limiter(QUOTA, clock=clock).decide({"user": "alice"}, slots="skip")
    assert (alone.allowed, alone.reason) == (True, "no_rule")


def test_waiting_gives_up_in_time(clock: FakeClock) -> None:
    limiter = Limiter(QUOTA, clock=clock)
    limiter.acquire("alice"), limiter.acquire("alice")
    start = clock.now()
    with pytest.raises(RateLimited):
        limiter.acquire("alice", wait=2.0)
    assert clock.now() - start == pytest.approx(2.0)
    assert limiter.acquire("alice", wait=60.0).is_held  # the first two have expired


def test_waiting_for_a_rate_takes_as_long_as_it_says(clock: FakeClock) -> None:
    limiter = Limiter(RULES, clock=clock)
    for _ in range(3):
        limiter.acquire("alice").release()
    start = clock.now()
    with pytest.raises(RateLimited):
        limiter.acquire("alice", wait=59.0)
    assert clock.now() == start
    limiter.acquire("alice", wait=60.0)
    assert clock.now() == start + 60


@pytest.mark.parametrize("wait", [-1, float("nan"), True, "1"])
def test_a_wait_is_no_less_than_zero(wait: float) -> None:
    with pytest.raises(InvalidCheck, match="wait: must be"):
        Limiter(QUOTA).acquire("alice", wait=wait)


def test_who_comes_first_gets_the_first_slot() -> None:
    limiter = Limiter("1 concurrent")
    held = limiter.acquire("alice")
    order: list[int] = []

    def come(number: int) -> None:
        with limiter.acquire("alice", wait=30):
            order.append(number)

    threads = []
    for number in range(5):
        threads.append(Thread(target=come, args=(number,)))
        threads[-1].start()
        time.sleep(0.02)
    held.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_who_waits_is_ahead_of_who_does_not(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    first, second = (Limiter(QUOTA, store=store, clock=clock) for _ in range(2))
    slots = [first.acquire("alice"), first.acquire("alice")]
    refused_by_others: list[float | None] = []

    def sleep(seconds: float) -> None:  # what happens while the first waits
        clock.advance(seconds)
        if slots:
            slots.pop().release()
            with pytest.raises(RateLimited) as refused:
                second.acquire("alice", cost=1 + len(refused_by_others))
            refused_by_others.append(refused.value.decision.retry_after)

    clock.sleep = sleep  # type: ignore[method-assign]
    waited = first.acquire("alice", cost=2, wait=1.0)
    assert waited.is_held
    assert refused_by_others[0] == 1.0  # one slot is free, but spoken for
    waited.release()
    assert second.acquire("alice", cost=2).is_held


def test_who_gives_up_leaves_the_queue(clock: FakeClock) -> None:
    limiter = Limiter(QUOTA, clock=clock)
    held = limiter.acquire("alice")
    with pytest.raises(RateLimited):
        limiter.acquire("alice", cost=2, wait=0.5)
    assert remaining(limiter) == {"default": 1}
    held.release()
    assert remaining(limiter) == {"default": 2}


def test_who_waits_for_a_rate_is_not_in_the_queue(clock: FakeClock) -> None:
    limiter = Limiter([Rule(id="slots", quota="1 concurrent ttl 10s"), Rule(id="rate", quota="2/minute")], clock=clock)
    for _ in range(2):
        limiter.acquire("alice").release()
    seen: list[dict[str, int]] = []

    def sleep(seconds: float) -> None:
        seen.append(remaining(limiter))
        clock.advance(seconds)

    clock.sleep = sleep  # type: ignore[method-assign]
    assert limiter.acquire("alice", wait=120.0).is_held
    assert seen[0] == {"slots": 1, "rate": 0}


def test_threads_never_hold_more_than_the_limit() -> None:
    limiter = Limiter("3 concurrent")
    under_way, most = 0, 0

    def work(_: int) -> None:
        nonlocal under_way, most
        with limiter.acquire("alice", wait=60):
            under_way += 1
            most = max(most, under_way)
            time.sleep(0.001)
            under_way -= 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(100)))
    assert 0 < most <= 3
    assert remaining(limiter) == {"default": 3}


def test_a_slot_is_renewed_while_its_block_runs(caplog: pytest.LogCaptureFixture) -> None:
    with Limiter("1 concurrent ttl 600ms") as limiter:
        with limiter.acquire("alice", renew=True), caplog.at_level(logging.WARNING):
            time.sleep(1.2)
            with pytest.raises(RateLimited):
                limiter.acquire("alice")
        assert limiter.acquire("alice").is_held
        time.sleep(0.7)
        assert limiter.acquire("alice").is_held  # nobody renews the other
    assert caplog.records == []


def test_a_slot_that_was_taken_away_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with Limiter("1 concurrent ttl 90ms") as limiter, limiter.acquire("alice", renew=True) as slot:
        limiter.reset("alice")
        with caplog.at_level(logging.WARNING):
            deadline = time.monotonic() + 10
            while not slot.is_lost and time.monotonic() < deadline:
                time.sleep(0.01)
        assert slot.is_lost
        assert not slot.release()
    assert "expired before it was renewed" in caplog.text


def test_what_a_limiter_knows_of_its_slots() -> None:
    limiter = Limiter([Rule(id="slots", quota="5 concurrent ttl 50ms")])
    first, second, _ = limiter.acquire("alice"), limiter.acquire("alice", cost=2), limiter.acquire("bob")
    first.release()
    status = limiter.slots()
    assert (status.in_use, status.acquired, status.released) == ({"slots": 3}, {"slots": 3}, {"slots": 1})
    assert 0 < status.longest_held["slots"] < 0.05
    time.sleep(0.06)
    status = limiter.slots()
    assert (status.in_use, status.expired, status.longest_held) == ({}, {"slots": 2}, {})
    assert not second.release()
    assert limiter.slots().expired == {"slots": 2}
    assert limiter.slots().acquired == {"slots": 3}


def test_a_slot_of_another_limiter_counts_as_released_and_not_as_acquired(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    first, second = (Limiter([Rule(id="slots", quota="5 concurrent")], store=store, clock=clock) for _ in range(2))
    assert second.release(first.acquire("alice").id)
    second.acquire("alice")
    assert (second.slots().released, second.slots().acquired) == ({"slots": 1}, {"slots": 1})


def test_an_edited_id_adds_no_rule_to_the_figures(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    first, second = (Limiter([Rule(id="slots", quota="5 concurrent")], store=store, clock=clock) for _ in range(2))

    def edited(slot: Slot) -> str:
        return encode_slot([check._replace(rule="made up") for check in slot.held])

    assert first.release(edited(first.acquire("alice")))
    assert second.release(edited(first.acquire("alice")))
    assert first.renew(edited(first.acquire("alice")))
    assert not first.release(encode_slot([first.acquire("alice").held[0]._replace(rule="made up", subject="bob")]))
    figures = first.slots()
    assert (figures.released, figures.expired, figures.acquired) == ({"slots": 1}, {"slots": 1}, {"slots": 4})
    assert (second.slots().released, second.slots().expired) == ({"other": 1}, {})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sync": "leased"}, "sync: concurrency cannot be leased"),
        ({"shards": 2}, "shards: concurrency cannot have shards"),
        ({"regions": "synced"}, "regions: regions cannot share slots"),
        ({"regions": "central"}, "regions: regions cannot share slots"),
        ({"action": "throttle"}, "action: concurrency cannot throttle"),
    ],
)
def test_what_slots_cannot_be(fields: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRule, match=message):
        Rule(id="slots", quota=Quota(5, 60, algorithm="concurrency"), **fields)  # type: ignore[arg-type]


def test_regions_that_share_everything_cannot_share_slots() -> None:
    from headgate.rules.snapshot import Snapshot

    with pytest.raises(InvalidRule, match="regions cannot share slots"):
        Snapshot([Rule(id="slots", quota=QUOTA)], regions="central")
    Snapshot([Rule(id="slots", quota=QUOTA, regions="separate")], regions="central")


def test_a_decorated_function_holds_a_slot_while_it_runs() -> None:
    limiter = Limiter([])

    @limiter.limit("1 concurrent; 10/minute", key=lambda name, _: name)
    def nested(name: str, depth: int) -> int:
        return nested(name, depth - 1) if depth else 7

    @limiter.limit("1 concurrent")
    async def nested_async(depth: int) -> int:
        return await nested_async(depth - 1) if depth else 7

    for _ in range(2):
        assert nested("alice", 0) == asyncio.run(nested_async(0)) == 7
        with pytest.raises(RateLimited):
            nested("alice", 1)
        with pytest.raises(RateLimited):
            asyncio.run(nested_async(1))
    limiter.close()


def test_a_decorated_function_that_is_cancelled_holds_nothing() -> None:
    limiter = Limiter([])

    @limiter.limit("1 concurrent")
    async def endless(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def main() -> None:
        for delay in (0, 0, 0.05, 0.05):
            task = asyncio.create_task(endless(60))
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            deadline = time.monotonic() + 20
            while True:
                try:
                    await endless(0)
                    break
                except RateLimited:
                    assert time.monotonic() < deadline, "the slot of a cancelled call is still held"
                    await asyncio.sleep(0.01)

    asyncio.run(main())
    limiter.close()


# asyncio


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@in_a_loop
async def test_an_async_block_holds_a_slot(clock: FakeClock) -> None:
    async with AsyncLimiter(RULES, clock=clock) as limiter:
        async with limiter.acquire("alice") as slot:
            assert (slot.is_held, slot.ttl) == (True, 10.0)
            other = await limiter.acquire("alice")
            with pytest.raises(RateLimited):
                await limiter.acquire("alice")
            assert [await limiter.renew(other.id), await other.renew(), await other.release()] == [True, True, True]
            assert not await other.release()
        peeked = await limiter.peek("alice")
        assert {status.rule: status.remaining for status in peeked.limits} == {"slots": 2, "rate": 1}
        with pytest.raises(InvalidCheck, match="use acquire"):
            await limiter.check("alice")


@in_a_loop
async def test_a_check_that_its_release_has_overtaken_takes_no_slot() -> None:
    """As on Redis, when the two go by different connections."""

    class Late(AsyncMemoryStore):
        async def check(self, groups: Sequence[Group]) -> list[Answer]:
            return await asyncio.shield(asyncio.create_task(self._check_late(groups)))

        async def _check_late(self, groups: Sequence[Group]) -> list[Answer]:
            sent.set()
            await asyncio.sleep(0.3)
            answers = self.store.check(groups)
            done.set()
            return answers

    sent, done = asyncio.Event(), asyncio.Event()
    async with AsyncLimiter("1 concurrent", store=Late(MemoryStore())) as limiter:
        task = asyncio.ensure_future(limiter.acquire("alice"))
        await sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await done.wait()
        assert (await limiter.peek("alice")).remaining == 1


@in_a_loop
async def test_a_cancelled_block_releases_its_slot() -> None:
    async with AsyncLimiter("1 concurrent") as limiter:
        started = asyncio.Event()

        async def work() -> None:
            async with limiter.acquire("alice"):
                started.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await limiter.acquire("alice")).is_held


@in_a_loop
async def test_tasks_wait_in_the_order_in_which_they_came() -> None:
    async with AsyncLimiter("1 concurrent") as limiter:
        held = await limiter.acquire("alice")
        order: list[int] = []

        async def come(number: int) -> None:
            async with limiter.acquire("alice", wait=30):
                order.append(number)

        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(come(number)))
            await asyncio.sleep(0.01)
        tasks[2].cancel()
        await held.release()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [0, 1, 3, 4]


@in_a_loop
async def test_tasks_that_wait_for_long_keep_their_places() -> None:
    """Only the first asks, for longer than a ticket lives, and renews the others' tickets."""
    store = MemoryStore()
    async with AsyncLimiter("1 concurrent", store=store) as limiter, AsyncLimiter("1 concurrent", store=store) as other:
        held = await limiter.acquire("alice")
        order: list[int] = []

        async def come(number: int) -> None:
            async with limiter.acquire("alice", wait=30):
                order.append(number)

        tasks = []
        for number in range(3):
            tasks.append(asyncio.create_task(come(number)))
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.2)
        tasks[0].cancel()
        last = asyncio.ensure_future(other.acquire("alice", wait=30))
        await asyncio.sleep(0.01)
        await held.release()
        await last
        assert order == [1, 2]
        await asyncio.gather(*tasks, return_exceptions=True)


@in_a_loop
async def test_an_async_slot_is_renewed_while_its_block_runs() -> None:
    async with AsyncLimiter("1 concurrent ttl 600ms") as limiter:
        async with limiter.acquire("alice", renew=True):
            await asyncio.sleep(1.2)
            with pytest.raises(RateLimited):
                await limiter.acquire("alice")
        assert (await limiter.acquire("alice")).is_held


def test_an_interrupted_thread_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter("1 concurrent")
    interrupted = Event()
    program_of = Programs.__missing__

    def interrupting(programs: Programs, plan: RulePlan) -> Program:
        def decide(*args: Any) -> None:
            program_of(programs, plan)(*args)
            interrupted.set()
            raise KeyboardInterrupt

        return decide

    monkeypatch.setattr(Programs, "__missing__", interrupting)
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire("alice")
    assert interrupted.is_set()
    monkeypatch.undo()
    assert limiter.acquire("alice").is_held


@in_a_loop
async def test_a_decorated_async_function_holds_a_slot_while_it_runs() -> None:
    async with AsyncLimiter([]) as limiter:

        @limiter.limit("1 concurrent")
        async def nested(depth: int) -> int:
            return await nested(depth - 1) if depth else 7

        for _ in range(2):
            assert await nested(0) == 7
            with pytest.raises(RateLimited):
                await nested(1)


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests that wait ask the store once an hour."""
    monkeypatch.setattr(slot_records, "POLL_SECONDS", 3_600.0)
    monkeypatch.setattr(slot_records, "MAX_POLL_SECONDS", 3_600.0)


@pytest.mark.usefixtures("seldom")
def test_a_release_wakes_the_next_thread_of_the_process() -> None:
    limiter = Limiter("1 concurrent")
    held = limiter.acquire("alice")
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(take_and_release, limiter) for _ in range(2)]
        until(lambda: len(lines_of(limiter)) == 2)
        held.release()
        assert [one.result(10.0) for one in waiting] == [True, True]


def take_and_release(limiter: Limiter) -> bool:
    with limiter.acquire("alice", wait=30.0) as slot:
        return slot.is_held


def lines_of(limiter: Any) -> list[Any]:
    """The requests that wait in this process."""
    return [place for line in limiter._slots._lines._known.values() for place in line._order]


@pytest.mark.usefixtures("seldom")
@in_a_loop
async def test_a_release_wakes_the_next_task_of_the_process() -> None:
    async with AsyncLimiter("1 concurrent") as limiter:
        held = await limiter.acquire("alice")

        async def come() -> bool:
            async with limiter.acquire("alice", wait=30.0) as slot:
                return slot.is_held

        tasks = [asyncio.create_task(come()) for _ in range(2)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(lines_of(limiter)) == 2
        await held.release()
        assert await asyncio.wait_for(asyncio.gather(*tasks), 10.0) == [True, True]
