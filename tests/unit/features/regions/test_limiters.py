"""Limiters of both kinds in three regions: what passes, and what callers are told."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Limiter, Rule, StoreError
from headgate.core.check import Check
from headgate.core.key import key_template
from headgate.core.quota import Quota
from headgate.features.regions.counts import KnownCounts
from headgate.features.regions.region import Region
from headgate.rules.penalties import Penalties
from headgate.rules.snapshot import Snapshot
from headgate.stores.protocol import Counted
from headgate.testing import FakeClock
from tests.integration.limiters import ALGORITHMS
from tests.unit.features.regions.conftest import WEIGHTS, Burst, Regions

WINDOWED = ("fixed_window", "sliding_window_counter")


def rule(mode: Any, quota: str = "100/hour fixed_window", **fields: Any) -> Rule:
    return Rule(id="shared", quota=quota, regions=mode, **fields)


def inner(limiter: Any) -> Any:
    """The limiter itself, whichever kind it is."""
    return getattr(limiter, "limiter", limiter)


def total(limiters: dict[str, Any], burst: Burst, counts: dict[str, int]) -> int:
    return sum(burst(limiters[name], count) for name, count in counts.items())


WISHES = {"eu": 50, "us": 30, "ap": 20}
MORE = dict.fromkeys(WEIGHTS, 60)


def test_without_a_word_each_region_has_the_whole_limit(regions: Regions, burst: Burst) -> None:
    limiters = regions.limiters([Rule(id="own", quota="100/hour")])
    assert total(limiters, burst, dict.fromkeys(WEIGHTS, 150)) == 300


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_central_counts_in_one_place(regions: Regions, burst: Burst, algorithm: str) -> None:
    limiters = regions.limiters([rule("central", f"100/hour {algorithm}")])
    assert total(limiters, burst, WISHES) == 100
    assert total(limiters, burst, MORE) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_quota_by_weight_divides_every_algorithm(regions: Regions, burst: Burst, algorithm: str) -> None:
    limiters = regions.limiters([rule("quota", f"100/hour {algorithm}")])
    assert total(limiters, burst, WISHES) == 100
    assert total(limiters, burst, MORE) == 0


def test_quota_by_weight_asks_nobody_else(regions: Regions, burst: Burst) -> None:
    limiter = regions.limiter("us", [rule("quota")])
    burst(limiter, 40)
    assert [link.calls for link in regions.links.values()] == [0] * 6


def test_a_share_is_what_callers_are_told(regions: Regions) -> None:
    short = regions.limiter("us", [rule("quota")])
    long = regions.limiter("us", [rule("quota"), Rule(id="own", quota="1000/hour", dimension="ip")])
    first = short.check(user="alice")
    second = long.check(user="alice", ip="192.0.2.1")
    assert (first.limit, first.remaining, second.limit, second.remaining) == (30, 29, 30, 28)
    assert [status.limit for status in second.limits] == [30, 1000]


def test_a_region_without_a_share_refuses(regions: Regions) -> None:
    limiters = regions.limiters([rule("quota", "1/hour")])
    decisions = {name: limiter.check(user="alice") for name, limiter in limiters.items()}
    assert {name: decision.allowed for name, decision in decisions.items()} == {"eu": True, "us": False, "ap": False}
    assert (decisions["us"].retry_after, decisions["us"].reason) == (None, "over_limit")
    assert limiters["us"].check_many([{"user": "bob"}])[0].retry_after is None


@pytest.mark.parametrize("algorithm", [*WINDOWED, "sliding_window_log"])
def test_auto_never_exceeds_the_limit(regions: Regions, burst: Burst, algorithm: str) -> None:
    limiters = regions.limiters([rule("quota_auto", f"100/hour {algorithm}")])
    passed = total(limiters, burst, WISHES)
    for _ in range(20):
        regions.clock.advance(1)
        passed += total(limiters, burst, MORE)
    assert passed == 100


def test_a_user_who_stays_in_one_region_gets_nearly_all_of_it(regions: Regions, burst: Burst) -> None:
    limiter = regions.limiter("ap", [rule("quota_auto")])
    passed = 0
    for _ in range(4):
        passed += burst(limiter, 60)
        regions.clock.advance(1)
    assert passed >= 95


def test_a_share_follows_the_demand_within_seconds(regions: Regions, burst: Burst) -> None:
    limiters = regions.limiters([rule("quota_auto")])
    assert burst(limiters["eu"], 40) == 40
    passed = 0
    for _ in range(15):
        regions.clock.advance(1)
        passed += burst(limiters["us"], 20)
        limiters["eu"].peek(user="alice")  # it is there, and has no demand
    assert passed >= 50


def test_a_region_that_is_cut_off_has_its_share_until_that_ends_and_then_its_floor(
    regions: Regions, burst: Burst
) -> None:
    limiters = regions.limiters([rule("quota_auto")])
    floor = limiters["us"].check(user="bob").limit  # nothing was agreed on for this one yet
    assert burst(limiters["us"], 5) == 5
    regions.clock.advance(1)
    assert burst(limiters["us"], 5) == 5
    share = limiters["us"].peek(user="alice").limit
    assert share > 20
    regions.links["us", "eu"].cut = True
    regions.clock.advance(1.5)
    assert limiters["us"].peek(user="alice").limit == share
    regions.clock.advance(3)
    assert limiters["us"].peek(user="alice").limit < 10 < floor + 10
    assert burst(limiters["us"], 20) == 0  # it has used more than that
    assert inner(limiters["us"]).regions().grant_failures > 0
    passed = 10
    for _ in range(10):
        regions.clock.advance(1)
        passed += burst(limiters["eu"], 100)
    assert passed <= 100


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_synced_regions_see_one_another_after_an_interval(regions: Regions, burst: Burst, algorithm: str) -> None:
    limiters = regions.limiters([rule("synced", f"100/hour {algorithm}")])
    passed = total(limiters, burst, {"eu": 50, "us": 30, "ap": 10})
    assert passed == 90
    regions.clock.advance(1)
    assert total(limiters, burst, {"eu": 1, "us": 1, "ap": 1}) == 3
    regions.clock.advance(1)
    decision = limiters["ap"].check(user="alice")
    assert (decision.limit, decision.remaining) == (100, 6)
    assert burst(limiters["ap"], 20) == 6


def test_synced_regions_pass_the_limit_by_no_more_than_the_bound(regions: Regions, burst: Burst) -> None:
    limiters = regions.limiters([rule("synced")])
    passed = total(limiters, burst, dict.fromkeys(WEIGHTS, 1))
    for _ in range(6):
        regions.clock.advance(0.5)
        passed += total(limiters, burst, dict.fromkeys(WEIGHTS, 20))
    statuses = [inner(limiter).regions() for limiter in limiters.values()]
    assert 100 < passed <= 100 + max(status.synced_bound for status in statuses)
    assert max(status.synced_excess for status in statuses) == passed - 100


def test_a_synced_region_that_hears_nothing_keeps_to_its_share(regions: Regions, burst: Burst) -> None:
    limiters = regions.limiters([rule("synced")])
    total(limiters, burst, dict.fromkeys(WEIGHTS, 1))
    for link in regions.links.values():
        link.cut = True
    passed = 3
    for _ in range(5):  # patience ends
        regions.clock.advance(1)
        passed += total(limiters, burst, dict.fromkeys(WEIGHTS, 1))
    assert inner(limiters["us"]).regions().peers["eu"].cut
    passed += total(limiters, burst, dict.fromkeys(WEIGHTS, 100))
    assert passed == 100
    for link in regions.links.values():
        link.cut = False
    for _ in range(2):
        regions.clock.advance(1)
        total(limiters, burst, dict.fromkeys(WEIGHTS, 1))
    assert not inner(limiters["us"]).regions().peers["eu"].cut


def test_a_region_that_is_back_is_noticed_though_nobody_asks(regions: Regions, burst: Burst) -> None:
    limiter = regions.limiter("us", [rule("synced")])
    burst(limiter, 1)
    regions.links["us", "eu"].cut = True
    for _ in range(5):
        regions.clock.advance(1)
        burst(limiter, 1)
    assert inner(limiter).regions().peers["eu"].cut
    regions.links["us", "eu"].cut = False
    regions.clock.advance(60)
    limiter.peek(user="bob")
    regions.clock.advance(60)
    regions.exchange(limiter)
    assert not inner(limiter).regions().peers["eu"].cut


def test_a_region_that_is_back_is_asked_about_all_keys_long_before_the_next_interval(
    regions: Regions, burst: Burst
) -> None:
    limiters = regions.limiters([rule("synced")])
    for limiter in limiters.values():
        for user in ("alice", "bob"):
            limiter.check(user=user)
    link = regions.links["us", "eu"]
    link.cut = True
    regions.clock.advance(1)
    assert burst(limiters["us"], 1) == 1
    calls = link.calls
    for _ in range(20):  # an interval
        regions.clock.advance(0.05)
        limiters["us"].check(user="bob")
    assert 4 <= link.calls - calls <= 6
    assert burst(limiters["eu"], 30) == 30
    link.cut = False
    regions.clock.advance(0.2)
    limiters["us"].check(user="bob")
    assert limiters["us"].peek(user="alice").remaining == 100 - 30 - 4
    assert not inner(limiters["us"]).regions().peers["eu"].cut


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_decisions_under_less_than_the_limit_tell_of_the_whole(regions: Regions, burst: Burst, algorithm: str) -> None:
    limiters = regions.limiters([rule("synced", f"100/hour {algorithm}")])
    assert burst(limiters["eu"], 30) == 30
    limiters["us"].check(user="alice")
    regions.clock.advance(1)
    decision = limiters["us"].check(user="alice")
    assert (decision.limit, decision.remaining) == (100, 100 - 30 - 2)
    assert decision.plan.limits[0].quota.limit == 100


def test_a_fixed_window_ends_for_each_region_by_its_own_clock(regions: Regions, burst: Burst) -> None:
    ahead = FakeClock(regions.clock.now_us() / 1e6 + 5)
    limiters = regions.limiters([rule("synced", "100/minute fixed_window")])
    regions.stores["ap"]._clock = ahead
    assert burst(limiters["eu"], 60) == 60
    for clock in (regions.clock, ahead):
        clock.advance(56)
    assert burst(limiters["ap"], 10) == 10  # its next minute has begun
    for clock in (regions.clock, ahead):
        clock.advance(1)
    assert burst(limiters["eu"], 100) == 40  # and this is not over


def test_counts_are_merged_in_whatever_order_and_however_often() -> None:
    known = KnownCounts(_check(), 30)
    heard = [Counted(0, 5), Counted(60_000_000, 3, 9), Counted(0, 7), Counted(60_000_000, 2, 9)]
    grown = [known.merge("us", counted) for counted in (*heard, *heard, *reversed(heard))]
    assert grown[:4] == [5, 7, 0, 0]
    assert not any(grown[4:])
    assert known.others(known.totals, 60_000_000)[0] == 3 + 9
    assert known.others(known.totals, 90_000_000)[0] == 3 + 5
    assert known.others(known.totals, 120_000_000)[0] == 3


def _check() -> Check:
    return Check("a", key_template("user", "a", "sliding_window_counter"), "alice", Quota(100, 60))


@pytest.mark.parametrize(
    ("mode", "reason", "allowed"),
    [("open", "fail_open", True), ("closed", "fail_closed", False), ("local", "local_fallback", True)],
)
def test_when_the_central_region_is_away_its_rules_fall_back(
    regions: Regions, mode: Any, reason: str, allowed: bool
) -> None:
    limiter = regions.limiter("us", [rule("central", failure_mode=mode, dimension="user+ip")])
    regions.links["us", "eu"].cut = True
    decision = limiter.check(user="alice", ip="192.0.2.1")
    assert (decision.reason, decision.allowed) == (reason, allowed)


def test_when_the_central_region_is_away_other_limits_hold(regions: Regions) -> None:
    own = Rule(id="own", quota="3/hour", dimension="ip")
    limiter = regions.limiter("us", [rule("central"), own])
    regions.links["us", "eu"].cut = True
    decisions = [limiter.check(user="alice", ip="192.0.2.1") for _ in range(5)]
    assert [decision.allowed for decision in decisions] == [True] * 3 + [False] * 2
    assert inner(limiter).regions().fallbacks == 3
    closed = regions.limiter("us", [rule("central", failure_mode="closed"), own])
    regions.stores["us"].clear()
    assert not closed.check(user="alice", ip="192.0.2.1")
    assert limiter.peek(ip="192.0.2.1").remaining == 3  # what was charged there was undone
    local = regions.limiter("us", [rule("central", "2/hour", failure_mode="local"), own])
    assert [local.check(user="bob", ip="192.0.2.1").allowed for _ in range(3)] == [True, True, False]
    assert limiter.peek(ip="192.0.2.1").remaining == 1


def test_a_request_is_charged_to_all_of_its_limits_or_to_none(regions: Regions) -> None:
    rules = [
        rule("central", "2/hour"),
        Rule(id="own", quota="10/hour", dimension="ip"),
        Rule(id="divided", quota="100/hour", dimension="tenant", regions="quota"),
    ]
    limiter = regions.limiter("us", rules)
    facts = {"user": "alice", "ip": "192.0.2.1", "tenant": "acme"}
    decisions = [limiter.check(**facts) for _ in range(4)]
    assert [decision.allowed for decision in decisions] == [True, True, False, False]
    assert decisions[-1].rule == "shared"
    assert {status.rule: status.remaining for status in decisions[-1].limits} == {"shared": 0, "own": 8, "divided": 28}
    seen = {status.rule: (status.limit, status.remaining) for status in limiter.peek(**facts).limits}
    assert seen == {"shared": (2, 0), "own": (10, 8), "divided": (30, 28)}
    # And the other way round: what does not fit here is not asked for there.
    assert not limiter.check(**facts, cost=11)
    limiter.reset(user="alice")
    assert limiter.peek(user="alice").remaining == 2


def test_batches_are_decided_where_each_belongs(regions: Regions) -> None:
    rules = [rule("central", "2/hour"), Rule(id="own", quota="3/hour", dimension="ip")]
    limiter = regions.limiter("us", rules)
    requests = [{"user": "alice"}, {"ip": "192.0.2.1"}, {"user": "alice", "ip": "192.0.2.1"}, {"user": "alice"}]
    assert [decision.allowed for decision in limiter.check_many(requests)] == [True, True, True, False]
    regions.links["us", "eu"].cut = True
    decisions = limiter.check_many(requests)
    assert [decision.reason for decision in decisions] == ["fail_open", "within_limit", "over_limit", "fail_open"]


def test_reset_forgets_in_every_region(regions: Regions, burst: Burst) -> None:
    for mode in ("central", "quota", "synced"):
        limiters = regions.limiters([rule(mode)])
        total(limiters, burst, WISHES)
        limiters["us"].reset(user="alice")
        regions.clock.advance(1)
        assert total(limiters, burst, WISHES) == 100
        for store in regions.stores.values():
            store.clear()
    limiter = regions.limiter("us", [rule("synced")])
    regions.links["us", "ap"].cut = True
    with pytest.raises(StoreError, match="region ap: the link is cut"):
        limiter.reset(user="alice")


def test_a_refusal_by_the_central_region_counts_against_the_client(regions: Regions) -> None:
    own = Rule(id="own", quota="100/hour", dimension="ip")
    penalties = Penalties(enabled=True, violation_threshold=2, detection_window="1h", multipliers=[1])
    limiter = regions.limiter("us", Snapshot([rule("central", "1/hour"), own], penalties=penalties))
    decisions = [limiter.check(user="alice", ip="192.0.2.1") for _ in range(4)]
    assert [decision.reason for decision in decisions] == ["within_limit", "over_limit", "penalty", "penalty"]


def test_a_request_with_an_idempotency_key_is_charged_once_in_each_region(regions: Regions) -> None:
    own = Rule(id="own", quota="100/hour", dimension="ip")
    limiter = regions.limiter("us", [rule("central", "2/hour"), own])
    facts = {"user": "alice", "ip": "192.0.2.1"}
    assert all(limiter.check(**facts, idempotency_key="one").allowed for _ in range(3))
    assert {status.rule: status.remaining for status in limiter.peek(**facts).limits} == {"shared": 1, "own": 99}


def test_reservations_are_settled_where_they_were_charged(regions: Regions) -> None:
    limiters = regions.limiters([rule("central", "10/hour"), Rule(id="own", quota="10/hour", dimension="ip")])
    facts = {"user": "alice", "ip": "192.0.2.1"}
    reservation = regions.call(limiters["us"], "reserve", **facts, cost=6)
    assert {status.remaining for status in limiters["us"].peek(**facts).limits} == {4}
    limiters["us"].settle(reservation.id, 2)
    assert {status.remaining for status in limiters["us"].peek(**facts).limits} == {8}
    assert limiters["eu"].peek(user="alice").remaining == 8


def test_a_central_rule_can_be_leased(regions: Regions, burst: Burst) -> None:
    limiters = regions.limiters([rule("central", "1000/hour", sync="leased")])
    passed = 0
    for _ in range(200):
        passed += total(limiters, burst, dict.fromkeys(WEIGHTS, 8))
        regions.clock.advance(0.01)
    assert passed == 1000
    status = inner(limiters["us"]).leases()
    assert status.hits > 0


def test_more_keys_than_are_remembered_have_their_floor(
    regions: Regions, burst: Burst, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("shares", "counts"):
        monkeypatch.setattr(f"headgate.features.regions.{module}.MAX_KEYS", 1)
    auto, synced = regions.limiter("us", [rule("quota_auto")]), regions.limiter("us", [rule("synced")])
    for limiter in (auto, synced):
        limiter.check(user="first")
    assert burst(auto, 10) == 1  # the floor of us
    regions.stores["us"].clear()
    assert burst(synced, 100) == 30  # its share by weight


def test_a_changed_limit_is_divided_anew(regions: Regions, burst: Burst) -> None:
    limiter = regions.limiter("us", Snapshot([rule("quota_auto")]))
    assert burst(limiter, 5) == 5
    inner(limiter)._engine.holder.swap(Snapshot([rule("quota_auto", "1000/hour fixed_window")], version="2"))
    passed = 5
    for _ in range(4):
        passed += burst(limiter, 1000)
        regions.clock.advance(1)
    assert passed >= 950


def test_a_sibling_counts_in_its_own_region(regions: Regions) -> None:
    region: Region = regions.region("us")
    with Limiter([rule("central")], store=regions.stores["us"], clock=regions.clock, region=region) as limiter:
        assert limiter.sibling("5/minute", name="shared").check("alice").limit == 5
        assert regions.stores["us"].counts([]) == []
        assert [link.calls for link in regions.links.values()] == [0] * 6
