"""Requests that are alike, decided many at a time on Redis and Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headgate import AsyncLimiter, Rule
from headgate.core.alike import Answers, Pattern
from headgate.core.check import Check, Group, Outcome, Result
from headgate.core.key import space
from headgate.core.quota import Quota
from headgate.limiter.alike import Concluded
from headgate.rules.sources.file import FileSource
from headgate.service.data import DataPlane
from headgate.stores.memory import MemoryStore
from headgate.stores.redis.aio import AsyncRedisStore
from headgate.telemetry.meter import Meter
from headgate.testing import FakeClock
from tests.servers import free_port

SIX = ("fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket", "leaky_bucket", "gcra")
SUBJECTS = ["ann", "bob", "ann", "a b", "ü", "a\nb", "", "x" * 200, *(f"user-{number}" for number in range(50)), "ann"]


def check(rule: str, quota: str, subject: str = "", *, cost: int = 1, enforced: bool = True) -> Check:
    parsed = Quota.parse(quota)
    return Check(rule, space("user", rule, parsed.algorithm), subject, parsed, cost, enforced)


PATTERNS = {
    **{name: Pattern((check("one", f"3/minute {name}"),), (True,)) for name in SIX},
    "dear": Pattern((check("one", "10/minute gcra", cost=4),), (True,)),
    "shadow": Pattern((check("one", "2/minute gcra", enforced=False),), (True,)),
    "not its own": Pattern((check("all", "40/minute gcra", "everybody"),), (False,)),
    "two": Pattern(
        (check("one", "3/minute fixed_window"), check("all", "40/minute gcra", "every body")), (True, False)
    ),
    "three": Pattern(
        (
            check("one", "3/minute fixed_window"),
            check("two", "2/minute sliding_window_log", enforced=False),
            check("three", "10/minute gcra", cost=4),
        ),
        (True, True, True),
    ),
}


def figures(results: Sequence[object]) -> list[int]:
    told: list[int] = []
    for result in results:
        assert isinstance(result, Result)
        for outcome in result.outcomes:
            told += outcome
    return told


@pytest.mark.parametrize("remember", [0, 1])
@pytest.mark.parametrize("name", PATTERNS)
def test_they_are_answered_as_each_by_itself_is_in_memory(redis_url: str, name: str, remember: int) -> None:
    pattern = PATTERNS[name]
    clock = FakeClock(1_700_000_000.0)
    twin = MemoryStore(clock=clock)

    async def main() -> None:
        store = AsyncRedisStore(f"{redis_url}&remember={remember}", clock=clock)
        ask = store.alike(pattern)
        assert ask is not None
        for seconds in (0.0, 0.3, 1.5, 30.0, 61.0):
            clock.advance(seconds)
            for subjects in (SUBJECTS, SUBJECTS[:1], SUBJECTS):
                expected = figures(twin.check([Group(pattern.of(subject)) for subject in subjects]))
                told = await ask(subjects)
                assert (told.now_us, list(told.figures)) == (clock.now_us(), expected)
        await store.close()

    asyncio.run(main())


def test_by_the_time_of_the_server(redis_url: str) -> None:
    async def main() -> Answers:
        store = AsyncRedisStore(redis_url)
        ask = store.alike(PATTERNS["two"])
        assert ask is not None
        told = await ask(["ann", "bob"])
        await store.close()
        return told

    told = asyncio.run(main())
    assert told.now_us > 1_700_000_000_000_000
    assert [Outcome(*told.figures[at : at + 3]).remaining for at in range(0, 12, 3)] == [2, 39, 2, 38]


RULES = [Rule(id="users", quota="3/day fixed_window"), Rule(id="all", quota="1000000/day gcra", dimension="global")]


async def decided(data: DataPlane, subjects: list[str]) -> list[Concluded]:
    shape = data.shape({"endpoint": "/a"}, "user", 1)
    assert shape is not None
    return await data.check_alike([shape] * len(subjects), subjects)


def test_more_than_go_in_one_call_and_what_is_counted(redis_url: str) -> None:
    async def main() -> None:
        meter = Meter()
        store = AsyncRedisStore(redis_url, observer=meter)
        data = DataPlane(AsyncLimiter(RULES, store=store), meter=meter)
        subjects = [f"user-{number}" for number in range(300)]
        told = await decided(data, subjects)
        assert [(one.size, len(one.unusual)) for one in told] == [(128, 0), (128, 0), (44, 0)]
        assert await decided(data, subjects)
        (once,) = await decided(data, ["user-7", "user-7", "user-8"])
        assert [(place, decision.allowed, decision.state) for place, decision in once.unusual.items()] == [
            (0, True, "warning"),
            (1, False, "throttled"),
            (2, True, "warning"),
        ]
        assert [decision.remaining for decision in once.unusual.values()] == [0, 0, 0]
        assert sorted(meter.tallies()) == [
            ("users", "allowed", "within_limit", 602),
            ("users", "refused", "over_limit", 1),
        ]
        buckets, total = meter.store_batches.read()
        assert (buckets[-1][1], total) == (7, 603)  # calls, and what they decided
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["open", "closed", "local"])
def test_a_store_that_is_away(mode: str) -> None:
    rules = [Rule(id="users", quota="1/day", failure_mode=mode)]  # type: ignore[arg-type]

    async def main() -> None:
        limiter = AsyncLimiter(rules, store=f"redis://127.0.0.1:{free_port()}/0?timeout=0.2")
        data = DataPlane(limiter)
        (told,) = await decided(data, ["ann", "ann"])
        reasons = [(decision.allowed, decision.reason) for decision in told.unusual.values()]
        assert (
            reasons
            == {
                "open": [(True, "fail_open")] * 2,
                "closed": [(False, "fail_closed")] * 2,
                "local": [(True, "local_fallback"), (False, "local_fallback")],
            }[mode]
        )
        shape = data.shape({"endpoint": "/a"}, "user", 1)
        assert shape is not None
        assert not data.holds(shape)  # until the long way finds the store well again
        await limiter.close()

    asyncio.run(main())


def test_other_rules_are_another_likeness(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("rules") / "rules.toml"
    text = '[[rules]]\nid = "users"\ndimension = "user"\nlimit = {}\nwindow = "1d"\n'
    file.write_text(text.format(3))

    async def main() -> None:
        source = FileSource(file)
        store = AsyncRedisStore(redis_url)
        data = DataPlane(AsyncLimiter(source, store=store))
        shape = data.shape({}, "user", 1)
        assert shape is not None
        assert data.holds(shape)
        file.write_text(text.format(9))
        source.reload()
        assert not data.holds(shape)
        (told,) = await decided(data, ["ann"])
        assert told.checks[0].quota.limit == 9
        await store.close()

    asyncio.run(main())


def test_who_is_known_to_be_refused_costs_no_call(redis_url: str) -> None:
    async def main() -> None:
        meter, clock = Meter(), FakeClock(1_700_000_000.0)
        store = AsyncRedisStore(f"{redis_url}&remember=1", clock=clock, observer=meter)
        data = DataPlane(AsyncLimiter(RULES, store=store, clock=clock), meter=meter)
        await decided(data, ["ann"] * 4)
        clock.advance(0.1)
        (told,) = await decided(data, ["ann", "bob", "ann"])
        assert [told.unusual[place].allowed for place in (0, 2)] == [False, False]
        assert told.unusual[0].retry_after == told.unusual[2].retry_after
        assert told.unusual[0].reset_at == told.unusual[0].at_us / 1e6 + told.unusual[0].reset_after
        assert meter.store_batches.read()[1] == 5  # four, and Bob
        calls = meter.store_calls.read()[0][-1][1]
        (told,) = await decided(data, ["ann"])
        assert (told.unusual[0].reason, meter.store_calls.read()[0][-1][1]) == ("over_limit", calls)
        clock.advance(1.0)
        await decided(data, ["ann"])
        assert meter.store_batches.read()[1] == 6  # what is remembered is soon forgotten
        await store.close()

    asyncio.run(main())
