"""One limit in three regions, each with a real server, 150 ms apart. The chaos suite has the faults in full."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, Rule
from tests.continents import NAMES, Continents
from tests.integration.limiters import calm
from tests.waiting import until

LIMIT = 100
INTERVAL = 0.5
WISHES = {"eu": 50, "us": 30, "ap": 20}
WEIGHTS = {"eu": 5, "us": 3, "ap": 2}


@pytest.fixture(scope="module")
def whole() -> Iterator[Continents]:
    with Continents() as continents:
        yield continents


@pytest.fixture
def continents(whole: Continents) -> Iterator[Continents]:
    whole.empty()
    yield whole
    whole.heal()


def rules(mode: Any, algorithm: str = "sliding_window_counter", **fields: Any) -> list[Rule]:
    return [Rule(id="shared", quota=calm(LIMIT, algorithm), regions=mode, **fields)]


def open_all(stack: ExitStack, continents: Continents, mode: Any, **fields: Any) -> dict[str, Limiter]:
    given = rules(mode, **fields)
    return {
        name: stack.enter_context(Limiter(given, **continents.options(name, weights=WEIGHTS, interval=INTERVAL)))
        for name in NAMES
    }


def everywhere(limiters: dict[str, Limiter], counts: dict[str, int]) -> int:
    """Ask in all regions at the same time; how many pass."""
    passed = [0] * len(counts)

    def ask(place: int, name: str, count: int) -> None:
        passed[place] = sum(limiters[name].check(user="alice").allowed for _ in range(count))

    threads = [
        threading.Thread(target=ask, args=(place, name, count)) for place, (name, count) in enumerate(counts.items())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(passed)


@pytest.mark.parametrize("mode", ["central", "quota"])
def test_exactly_the_limit_passes(continents: Continents, mode: Any) -> None:
    with ExitStack() as stack:
        limiters = open_all(stack, continents, mode)
        assert everywhere(limiters, WISHES) == LIMIT
        assert everywhere(limiters, dict.fromkeys(NAMES, 5)) == 0


def test_shares_that_follow_demand_never_pass_more_than_the_limit(continents: Continents) -> None:
    with ExitStack() as stack:
        limiters = open_all(stack, continents, "quota_auto")
        passed = everywhere(limiters, WISHES)

        def more() -> bool:
            nonlocal passed
            passed += everywhere(limiters, dict.fromkeys(NAMES, 20))
            time.sleep(INTERVAL / 2)
            return passed >= LIMIT

        until(more, "all of the limit was used")
        for _ in range(3):
            more()
        assert passed == LIMIT


def test_a_user_who_stays_in_one_region_gets_nearly_all_within_seconds(continents: Continents) -> None:
    with Limiter(rules("quota_auto"), **continents.options("us", interval=INTERVAL)) as limiter:
        began, passed = time.monotonic(), 0
        while passed < 0.95 * LIMIT and time.monotonic() < began + 20:
            passed += limiter.check(user="bob").allowed
            time.sleep(0.001)
        assert passed >= 0.95 * LIMIT


def test_synced_regions_pass_the_limit_by_no_more_than_what_one_interval_held(continents: Continents) -> None:
    with ExitStack() as stack:
        limiters = open_all(stack, continents, "synced")
        passed = everywhere(limiters, WISHES)
        assert passed == LIMIT

        def heard() -> bool:
            """Every region knows all that the others have counted."""
            nonlocal passed
            passed += everywhere(limiters, dict.fromkeys(NAMES, 1))
            time.sleep(INTERVAL / 4)
            return all(limiter.peek(user="alice").remaining == 0 for limiter in limiters.values())

        until(heard, "the counts have converged")
        assert everywhere(limiters, dict.fromkeys(NAMES, 20)) == 0
        bound = max(limiter.regions().synced_bound for limiter in limiters.values())
        assert passed <= LIMIT + bound


def test_a_cut_link_heals_and_counts_converge(continents: Continents) -> None:
    with ExitStack() as stack:
        limiters = open_all(stack, continents, "synced")
        everywhere(limiters, dict.fromkeys(NAMES, 5))
        continents.sever(("eu", "us"))

        def cut() -> bool:
            everywhere(limiters, {"eu": 1, "us": 1})
            time.sleep(INTERVAL / 4)
            return limiters["eu"].regions().peers["us"].cut and limiters["us"].regions().peers["eu"].cut

        until(cut, "both have noticed")
        passed = everywhere(limiters, {"eu": LIMIT, "us": LIMIT})
        own = {name: _own(continents, name) for name in NAMES}
        assert passed > 0
        assert own["eu"] <= max(50, own["eu"] - passed)
        assert own["us"] <= max(30, own["us"] - passed)
        assert sum(own.values()) <= LIMIT
        continents.heal()

        def converged() -> bool:
            everywhere(limiters, dict.fromkeys(NAMES, 1))
            time.sleep(INTERVAL / 4)
            now = sum(_own(continents, name) for name in NAMES)
            remaining = {name: limiter.peek(user="alice").remaining for name, limiter in limiters.items()}
            return set(remaining.values()) == {max(0, LIMIT - now)}

        until(converged, "all know of all")


def _own(continents: Continents, name: str) -> int:
    """What a region has counted itself."""
    with Limiter(rules("separate"), store=f"{continents.servers[name].url}?timeout=0.5") as limiter:
        return LIMIT - limiter.peek(user="alice").remaining


@pytest.mark.parametrize(("mode", "reason"), [("open", "fail_open"), ("closed", "fail_closed")])
def test_a_central_region_that_does_not_answer_in_time_leaves_it_to_the_failure_mode(
    continents: Continents, mode: Any, reason: str
) -> None:
    own = Rule(id="own", quota=calm(3), dimension="ip")
    given = [*rules("central", failure_mode=mode), own]
    with Limiter(given, **continents.options("us")) as limiter:
        assert limiter.check(user="alice").reason == "within_limit"
        continents.sever(("eu", "us"))
        assert limiter.check(user="alice").reason == reason
        allowed = [limiter.check(user="alice", ip="192.0.2.1").allowed for _ in range(5)]
        assert allowed == [mode == "open" and number < 3 for number in range(5)]
        continents.heal()
        until(lambda: limiter.check(user="alice").reason == "within_limit", "the central region decides again")


def test_asyncio_does_the_same(continents: Continents) -> None:
    async def ask(limiter: AsyncLimiter, count: int) -> int:
        return sum([(await limiter.check(user="alice")).allowed for _ in range(count)])

    async def main() -> None:
        before = asyncio.all_tasks()
        for mode in ("central", "quota", "quota_auto", "synced"):
            continents.empty()
            async with AsyncExitStack() as stack:
                limiters = {
                    name: await stack.enter_async_context(
                        AsyncLimiter(rules(mode), **continents.options(name, weights=WEIGHTS, interval=INTERVAL))
                    )
                    for name in NAMES
                }
                passed = 0
                deadline = time.monotonic() + 30
                while passed < LIMIT and time.monotonic() < deadline:
                    passed += sum(await asyncio.gather(*(ask(limiters[name], WISHES[name]) for name in NAMES)))
                    await asyncio.sleep(INTERVAL / 2)
                bound = max(limiter.regions().synced_bound for limiter in limiters.values())
                assert LIMIT <= passed <= LIMIT + (bound if mode == "synced" else 0), mode
            assert asyncio.all_tasks() == before

    asyncio.run(main())


def test_nothing_is_left_behind(continents: Continents) -> None:
    before = set(threading.enumerate())
    with ExitStack() as stack:
        given = [
            Rule(id="auto", quota=calm(LIMIT), regions="quota_auto"),
            Rule(id="synced", quota=calm(LIMIT), regions="synced", dimension="ip"),
        ]
        limiter = stack.enter_context(Limiter(given, **continents.options("us")))
        limiter.check(user="alice", ip="192.0.2.1")
        names = {thread.name for thread in set(threading.enumerate()) - before}
        passing = {"headgate-redis", "headgate-clock"}  # while a connection is opened, or waited for
        assert {name for name in names if name.startswith("headgate-")} - passing == {
            "headgate-shares",
            "headgate-counts-of-ap",
            "headgate-counts-of-eu",
        }
    until(lambda: not [one for one in set(threading.enumerate()) - before if one.name.startswith("headgate-")])


def test_a_check_of_a_share_or_of_synced_counts_asks_no_other_region(continents: Continents) -> None:
    """It is decided though none of them can be reached."""
    for link in continents.links.values():
        link.sever()
    for mode in ("quota", "quota_auto", "synced"):
        with Limiter(rules(mode, failure_mode="closed"), **continents.options("us")) as limiter:
            reasons = [limiter.check(user=mode).reason for _ in range(10)]
        assert set(reasons) <= {"within_limit", "over_limit"}
        assert reasons[0] == "within_limit"


def test_a_forked_child_hears_of_the_others_by_itself(continents: Continents) -> None:
    with Limiter(rules("synced"), **continents.options("us", interval=INTERVAL)) as limiter:
        limiter.check(user="alice")
        until(lambda: limiter.regions().peers["eu"].calls > 0, "eu was heard of")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                before = limiter.regions().peers["eu"].calls
                limiter.check(user="bob")
                until(lambda: limiter.regions().peers["eu"].calls > before, "eu was heard of again")
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
