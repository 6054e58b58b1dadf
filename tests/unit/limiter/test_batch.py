"""Several requests at once, and one request that is known in several ways: in memory, on a clock of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headgate import AsyncLimiter, Decision, Limiter, Rule
from headgate.core.check import Answer, Group
from headgate.errors import IdempotencyConflict, InvalidCheck, StoreUnavailable
from headgate.http.request_limiter import resolve
from headgate.limiter.batch import BatchedRequest, RequestPart
from headgate.rules.directory import UNKNOWN, Listed
from headgate.rules.penalties import Penalties
from headgate.rules.plan import plan_of_rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import Override, User
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.testing import FakeClock

USER = Rule(id="user", quota="3/minute fixed_window", endpoints=["/a"])
TENANT = Rule(id="tenant", quota="4/minute gcra", dimension="tenant", endpoints=["/a", "/b"])
SHADOW = Rule(id="shadow", quota="1/minute", dimension="user", endpoints=["/b"], action="log_only")
TRIPLE = Rule(id="triple", quota="10/minute fixed_window", endpoints=["/c"], cost=3)
EVERYBODY = Rule(id="all", quota="5/minute fixed_window", dimension="global", endpoints=["/d"])
RULES = [USER, TENANT, SHADOW, TRIPLE, EVERYBODY]

ASKS = [
    ({"user": "u", "endpoint": "/a"}, 1),
    ({"user": "u", "tenant": "t", "endpoint": "/a"}, 2),
    ({"user": "u", "endpoint": "/a"}, 1),
    ({"user": "u", "tenant": "t", "endpoint": "/b"}, 1),
    ({"user": "u", "tenant": "t", "endpoint": "/b"}, 1),
    ({"user": "u", "endpoint": "/c"}, 2),
    ({"user": "u", "endpoint": "/c"}, 2),
    ({"endpoint": "/d"}, 0),
    ({"endpoint": "/d"}, 6),
    ({"endpoint": "/none"}, 1),
    ({"user": "v", "endpoint": "/a"}, 3),
    ({"user": "v", "endpoint": "/a"}, 1),
]


class Slow(AsyncMemoryStore):
    """A store that has to be awaited, as one elsewhere has to be."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MemoryStore(clock=clock))
        self.calls = 0
        self.broken = False

    async def check(self, groups: Sequence[Group]) -> list[Answer]:
        self.calls += 1
        await asyncio.sleep(0)
        if self.broken:
            raise StoreUnavailable("broken")
        return await super().check(groups)


class Elsewhere(Listed):
    """Users who have to be looked up."""

    __slots__ = ("asked",)

    def __init__(self, users: Sequence[User]) -> None:
        super().__init__(users)
        self.asked: list[str] = []
        self.recall: Any = lambda _: UNKNOWN

    async def find_async(self, user_id: str) -> User | None:
        self.asked.append(user_id)
        return await super().find_async(user_id)


def limiter(rules: list[Rule] | Snapshot = RULES, *, slow: bool = False) -> AsyncLimiter:
    clock = FakeClock(1_700_000_000.0)
    return AsyncLimiter(rules, store=Slow(clock) if slow else MemoryStore(clock=clock), clock=clock)


def asks() -> list[BatchedRequest]:
    return [BatchedRequest(dict(facts), cost) for facts, cost in ASKS]


@pytest.mark.parametrize("slow", [False, True])
class TestMany:
    def test_decides_as_one_after_the_other_would(self, slow: bool) -> None:
        async def one_by_one(alone: AsyncLimiter) -> list[Decision]:
            return [await resolve(alone.decide(facts, cost=cost)) for facts, cost, *_ in asks()]

        expected = asyncio.run(one_by_one(limiter()))
        assert [decision.allowed for decision in expected] == [
            *(True, True, False, True, True, True, False, True, False, True, True, False)
        ]
        assert asyncio.run(resolve(limiter(slow=slow).decide_many(asks()))) == expected

    @pytest.mark.parametrize("listed", [True, False])
    def test_of_users_with_overrides_too(self, slow: bool, listed: bool) -> None:
        users = [User(id="v", overrides=[Override(rule="user", limit=4)])]
        elsewhere = None if listed else Elsewhere(users)
        snapshot = Snapshot(RULES, users=users if listed else [], directory=elsewhere)
        decisions = asyncio.run(resolve(limiter(snapshot, slow=slow).decide_many(asks())))
        alone = limiter(Snapshot(RULES, users=users))
        assert decisions == [asyncio.run(resolve(alone.decide(facts, cost=cost))) for facts, cost, *_ in asks()]
        assert decisions[-1].allowed
        assert elsewhere is None or sorted(elsewhere.asked) == ["u", "v"]  # once each
        assert asyncio.run(resolve(limiter(snapshot, slow=slow).decide_many([]))) == []

    def test_none_is_charged_if_one_makes_no_sense(self, slow: bool) -> None:
        async def story() -> None:
            bad = limiter(slow=slow)
            with pytest.raises(InvalidCheck, match="got -1"):
                await resolve(bad.decide_many([*asks(), BatchedRequest({"user": "u"}, -1)]))
            with pytest.raises(InvalidCheck, match="rule 'triple' is above 2\\^53-1"):
                await resolve(bad.decide_many([*asks(), BatchedRequest({"user": "u", "endpoint": "/c"}, 2**53 - 1)]))
            assert (await resolve(bad.decide({"user": "u", "endpoint": "/a"}))).remaining == 2

        asyncio.run(story())

    def test_idempotency_keys(self, slow: bool) -> None:
        async def story() -> None:
            once = limiter(slow=slow)
            facts = {"user": "u", "endpoint": "/a"}
            first, second = await resolve(
                once.decide_many([BatchedRequest(facts, 1, "k"), BatchedRequest(facts, 1, "k")])
            )
            assert (first.remaining, second.remaining) == (2, 2)
            with pytest.raises(IdempotencyConflict):
                await resolve(once.decide_many([BatchedRequest(facts, 2, "k"), BatchedRequest(facts, 1)]))
            assert (await resolve(once.decide(facts, cost=0))).remaining == 1  # the other was decided

        asyncio.run(story())

    def test_of_nothing(self, slow: bool) -> None:
        assert asyncio.run(resolve(limiter(slow=slow).decide_many([]))) == []


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "token_bucket", "gcra"])
def test_a_batch_of_one_program_decides_as_one_after_the_other_would(algorithm: str) -> None:
    rules = [
        Rule(id="user", quota=f"3/minute {algorithm}"),
        Rule(id="all", quota=f"7/minute {algorithm}", dimension="global"),
        Rule(id="trial", quota=f"2/minute {algorithm}", action="log_only"),
    ]
    requests: list[Any] = [{"user": f"u{number % 3}", "cost": number % 4} for number in range(24)]
    clock = FakeClock(1_700_000_000.0)
    alone, together = (Limiter(rules, clock=clock) for _ in range(2))
    expected = [alone.check(**request) for request in requests]
    assert {bool(decision) for decision in expected} == {True, False}
    assert together.check_many(requests) == expected


def test_a_batch_is_one_call_to_the_store() -> None:
    clock = FakeClock(1_700_000_000.0)
    store = Slow(clock)
    asyncio.run(resolve(AsyncLimiter(RULES, store=store, clock=clock).decide_many(asks())))
    assert store.calls == 1


def test_a_memory_without_room_fails_as_the_rules_say() -> None:
    clock = FakeClock(1_700_000_000.0)
    full = AsyncLimiter(
        [Rule(id="r", quota="1/minute", failure_mode="closed")], store=MemoryStore(max_keys=1, clock=clock), clock=clock
    )
    decisions = asyncio.run(resolve(full.decide_many([BatchedRequest({"user": "a"}), BatchedRequest({"user": "b"})])))
    assert [decision.reason for decision in decisions] == ["within_limit", "fail_closed"]


@pytest.mark.parametrize("slow", [False, True])
class TestTogether:
    def test_all_limits_are_charged_or_none(self, slow: bool) -> None:
        async def story() -> None:
            shared = limiter([USER, Rule(id="ip", quota="1/minute fixed_window", dimension="ip")], slow=slow)
            parts = [
                RequestPart({"user": "u", "endpoint": "/a"}),
                RequestPart({"ip": "i"}),
                RequestPart({"endpoint": "/none"}),
            ]
            first = (await resolve(shared.decide_together(parts))).parts
            assert [(one.allowed, one.remaining, one.rule) for one in first] == [
                *((True, 2, "user"), (True, 0, "ip"), (True, 0, None))
            ]
            assert first[2].reason == "no_rule"
            second = (await resolve(shared.decide_together(parts))).parts
            assert [(one.allowed, one.remaining) for one in second] == [(True, 2), (False, 0), (True, 0)]
            assert second[1].reason == "over_limit"

        asyncio.run(story())

    def test_a_limit_that_several_parts_meet_is_charged_once_by_the_most(self, slow: bool) -> None:
        async def story() -> None:
            shared = limiter(slow=slow)
            parts = [
                RequestPart({"endpoint": "/d"}, 1),
                RequestPart({"endpoint": "/d", "user": "u"}, 3),
                RequestPart({"endpoint": "/d"}, 2),
            ]
            decisions = (await resolve(shared.decide_together(parts))).parts
            assert [(one.allowed, one.remaining) for one in decisions] == [(True, 2)] * 3

        asyncio.run(story())

    def test_a_part_may_bring_its_own_rule(self, slow: bool) -> None:
        async def story() -> None:
            shared = limiter(slow=slow)
            plan = plan_of_rule(Rule(id="own", quota="2/minute fixed_window", dimension="x"))
            parts = [
                RequestPart({"x": "1", "user": "u", "endpoint": "/a"}, 1, plan),
                RequestPart({"user": "u", "endpoint": "/a"}),
            ]
            decisions = (await resolve(shared.decide_together(parts))).parts
            assert [(one.rule, one.remaining) for one in decisions] == [("own", 1), ("user", 2)]

        asyncio.run(story())

    def test_a_penalty_meets_the_surest_identity(self, slow: bool) -> None:
        async def story() -> None:
            penalties = Penalties(enabled=True, violation_threshold=1, multipliers=[2])
            rules = [Rule(id="ip", quota="1/minute fixed_window", dimension="ip"), USER, SHADOW]
            strict = limiter(Snapshot(rules, penalties=penalties), slow=slow)
            parts = [
                RequestPart({"ip": "i"}),
                RequestPart({"user": "u", "endpoint": "/a"}),
                RequestPart({"user": "u", "endpoint": "/b"}),
            ]
            assert all((await resolve(strict.decide_together(parts))).parts)
            refused = (await resolve(strict.decide_together(parts))).parts
            assert [(one.allowed, one.reason) for one in refused][:2] == [(False, "penalty"), (True, "within_limit")]
            assert refused[0].retry_after == 120
            again = (await resolve(strict.decide_together(parts))).parts
            assert [one.reason for one in again[:2]] == ["penalty", "penalty"]
            assert (await resolve(strict.decide({"user": "u", "endpoint": "/a"}))).reason == "penalty"
            assert (await resolve(strict.decide({"ip": "other"}))).allowed

        asyncio.run(story())


def test_together_fails_as_the_rules_say() -> None:
    clock = FakeClock(1_700_000_000.0)
    store = Slow(clock)
    store.broken = True
    closed = Rule(id="closed", quota="1/minute", dimension="ip", failure_mode="closed")
    shared = AsyncLimiter([USER, closed], store=store, clock=clock)
    decisions = asyncio.run(
        resolve(
            shared.decide_together(
                [RequestPart({"user": "u", "endpoint": "/a"}), RequestPart({"ip": "i"}), RequestPart({})]
            )
        )
    ).parts
    assert [decision.reason for decision in decisions] == ["fail_open", "fail_closed", "no_rule"]


def test_a_request_that_varies_in_a_fact_that_rules_name_gets_its_own_plan() -> None:
    rules = [
        Rule(id="free", quota="5/minute", match={"country": "DE"}),
        Rule(id="all", quota="9/minute", dimension="tenant"),
    ]

    async def story() -> list[str | None]:
        named = AsyncLimiter(Snapshot(rules, facts=["country"]))
        facts = [{"user": "u", "tenant": "t", "country": country} for country in ("DE", "FR", "FR", "DE")]
        varying = [BatchedRequest(one, varying="country" if at else None) for at, one in enumerate(facts)]
        return [decision.rule for decision in await resolve(named.decide_many(varying))]

    assert asyncio.run(story()) == ["free", "all", "all", "free"]


def test_requests_that_vary_in_their_user_are_counted_by_user() -> None:
    async def story() -> list[int]:
        plain = AsyncLimiter("3/minute")
        requests = [BatchedRequest({"user": user}, varying="user" if at else None) for at, user in enumerate("aabab")]
        return [decision.remaining for decision in await resolve(plain.decide_many(requests))]

    assert asyncio.run(story()) == [2, 1, 2, 0, 1]
