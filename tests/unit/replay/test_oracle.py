"""A replay of N requests decides each as N live checks with a fake clock do, whatever the rules."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headgate import Limiter, Rule
from headgate.core.quota import BUCKETS, WINDOWS, Quota
from headgate.replay.fields import parse_fields
from headgate.replay.log import Log
from headgate.replay.replay import missing_facts, replay, wanted_facts
from headgate.replay.run import Run
from headgate.rules.exemptions import Exemption
from headgate.rules.penalties import Penalties
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import Override, Tier, User
from headgate.testing import FakeClock

START = 1_790_000_000.0
REQUESTS = 3_000


def snapshot(algorithm: str, *, penalties: bool = False) -> Snapshot:
    """Tiers, overrides (one of which expires on the way), groups, costs, a shadow and exemptions."""
    burst = 6 if algorithm in BUCKETS else None

    def quota(limit: int, window: float) -> Quota:
        return Quota(limit, window, burst=burst, algorithm=algorithm)  # type: ignore[arg-type]

    rules = [
        Rule(id="everybody", quota=quota(900, 60), dimension="global"),
        Rule(id="free", quota=quota(9, 10), dimension="user", tiers=["free"], group="tier", priority=20),
        Rule(id="paid", quota=quota(25, 10), dimension="user", tiers=["paid"], group="tier", priority=20),
        Rule(id="search", quota=quota(4, 5), endpoints=["/search"], group="tier", priority=10, methods=["GET"]),
        Rule(id="upload", quota=quota(30, 20), dimension="tenant+endpoint", endpoints=["/files/*"], cost=3),
        Rule(id="watched", quota=quota(5, 10), dimension="ip", action="log_only"),
    ]
    expires = datetime.fromtimestamp(START + 100, UTC)
    users = [
        User(id="user-1", tier="paid"),
        User(id="user-2", overrides=[Override(rule="free", limit=40, expires=expires)]),
        User(id="user-3", overrides=[Override(rule="search", limit=2), Override(rule="free", limit=1, window=60)]),
    ]
    return Snapshot(
        rules,
        tiers=[Tier(name="free"), Tier(name="paid")],
        users=users,
        exemptions=[Exemption(type="ip", value="192.0.2.0/28"), Exemption(type="user", value="user-4")],
        default_tier="free",
        penalties=Penalties(enabled=penalties, detection_window=30, violation_threshold=4, multipliers=[1, 2]),
    )


def requests(seed: int) -> list[tuple[float, dict[str, str], int]]:
    chance = random.Random(seed)
    now, made = START, []
    for _ in range(REQUESTS):
        now += chance.choice((0, 0, 0.001, 0.05, 0.1, 0.5))
        facts = {
            "user": f"user-{chance.randrange(12)}",
            "ip": f"192.0.2.{chance.randrange(60)}",
            "tenant": chance.choice(("acme", "umbrella")),
            "endpoint": chance.choice(("/search", "/search", "/files/a", "/files/b", "/other")),
            "method": chance.choice(("GET", "GET", "POST")),
        }
        if chance.random() < 0.2:
            facts["tier"] = chance.choice(("free", "paid"))
        if chance.random() < 0.1:
            del facts["user"]
        made.append((now, facts, chance.choice((1, 1, 1, 2, 5))))
    return made


@pytest.mark.parametrize(
    "penalties", [pytest.param(False, marks=pytest.mark.extended, id=""), pytest.param(True, id="penalties")]
)
@pytest.mark.parametrize("algorithm", [*WINDOWS, *BUCKETS])
def test_a_replay_equals_live_checks(algorithm: str, penalties: bool, tmp_path: Path) -> None:
    rules = snapshot(algorithm, penalties=penalties)
    clock = FakeClock(START)
    live = Limiter(rules, clock=clock)
    run = Run(rules)
    refused: Counter[str | None] = Counter()
    shadows = 0
    lines = []
    made = requests(seed=len(algorithm))
    for at, facts, cost in made:
        clock.advance(at - clock.now())
        decision = live.check(**facts, cost=cost)
        verdict = run.decide(clock.now_us(), facts, cost)
        assert verdict is not None
        assert verdict.allowed == decision.allowed
        if not decision.allowed:
            assert verdict.rule == decision.rule
            refused[decision.rule] += 1
        shadows += decision.allowed and decision.reason == "shadow"
        lines.append(json.dumps({"time": clock.now(), **facts, "cost": cost}))
    assert {"search", "free", "upload"} <= refused.keys()  # else this says little
    log = tmp_path / "requests.json"
    log.write_text("\n".join(lines))
    report = replay(Log([str(log)], wanted=wanted_facts(rules)), rules)
    assert report.requests == REQUESTS
    assert report.refused == refused.total()
    assert report.allowed == REQUESTS - refused.total()
    assert {rule.id: rule.refused for rule in report.rules if rule.refused} == dict(refused)
    assert report.shadow == shadows
    assert (report.penalised > 0) is penalties
    assert report.exempt == sum(
        facts.get("user") == "user-4" or int(facts["ip"].rpartition(".")[2]) < 16 for _, facts, _ in made
    )


def test_units_and_calendars_are_decided_as_live_checks_are(tmp_path: Path) -> None:
    rules = Snapshot(
        [
            Rule(id="requests", quota="4/minute"),
            Rule(id="tokens", quota="9000/minute token_bucket", unit="tokens"),
            Rule(id="money", quota="3000/calendar day tz Asia/Kolkata", unit="usd_micros", cost=2),
        ],
        users=[User(id="user-1", anchor=20), User(id="user-2", overrides=[Override(rule="tokens", limit=300)])],
    )
    chance = random.Random(5)
    clock = FakeClock(1_789_927_000.0)  # 2 h 15 min before midnight in India
    live = Limiter(rules, clock=clock)
    refused: Counter[str | None] = Counter()
    lines = []
    for _ in range(REQUESTS):
        clock.advance(chance.choice((0, 1, 2, 30)))
        user, tokens = f"user-{chance.randrange(4)}", chance.choice((10, 500, 4_000))
        cost = {"requests": 1, "tokens": tokens}
        if chance.random() < 0.5:
            cost["usd_micros"] = tokens // 100
        decision = live.check(user=user, cost=cost)
        if not decision.allowed:
            refused[decision.rule] += 1
        lines.append(json.dumps({"time": clock.now(), "user": user, "usage": {"total": tokens}, **cost}))
    assert refused.keys() == {"requests", "tokens", "money"}
    log = tmp_path / "requests.json"
    log.write_text("\n".join(lines).replace('"requests": 1, "tokens"', '"spent"'))
    wanted = wanted_facts(rules)
    assert missing_facts(rules, Log([str(log)], wanted=wanted).facts) == [
        {"rule": "tokens", "fact": "cost.tokens", "why": "unit"}
    ]
    fields = parse_fields(["cost.tokens=json:usage.total"])
    report = replay(Log([str(log)], fields=fields, wanted=wanted), rules)
    assert {rule.id: rule.refused for rule in report.rules if rule.refused} == dict(refused)


@pytest.mark.parametrize("algorithm", [*WINDOWS, *BUCKETS])
def test_the_use_of_a_limit_is_that_of_live_checks(algorithm: str) -> None:
    quota = Quota(20, 10, algorithm=algorithm)  # type: ignore[arg-type]
    rules = Snapshot([Rule(id="r", quota=quota), Rule(id="s", quota=Quota(7, 3, algorithm=algorithm), dimension="ip")])  # type: ignore[arg-type]
    clock = FakeClock(START)
    live = Limiter(rules, clock=clock)
    run = Run(rules)
    peaks: dict[tuple[str, str], float] = {}
    for at, facts, cost in requests(seed=3):
        known = {"user": facts.get("user", "nobody"), "ip": facts["ip"]}
        clock.advance(at - clock.now())
        decision = live.check(**known, cost=cost)
        run.decide(clock.now_us(), known, cost)
        for limit in decision.limits:
            key = (limit.rule, known["user" if limit.rule == "r" else "ip"])
            peaks[key] = max(peaks.get(key, 0.0), 1 - limit.remaining / limit.limit)
    for rule in ("r", "s"):
        for subject, share, _, _ in run.rules[rule].subjects():
            assert share == pytest.approx(peaks[rule, subject])


def test_held_requests_are_tried_again_as_the_middleware_does() -> None:
    rules = Snapshot([Rule(id="slow", quota="10/second gcra", action="throttle", max_delay=1.0)])
    run = Run(rules)
    verdicts = [run.decide(1_000_000, {"user": "a"}) for _ in range(40)]
    assert [verdict and verdict.allowed for verdict in verdicts] == [True] * 10 + [None] * 30
    run.finish()
    # One more passes each tenth of a second; whoever has waited for a second by then is refused.
    assert (run.requests, run.delayed, run.refused) == (40, 10, 20)


def test_a_leaky_bucket_delays_all_but_the_first() -> None:
    run = Run(Snapshot([Rule(id="slow", quota="10/second burst 5 leaky_bucket", action="throttle")]))
    for _ in range(5):
        run.decide(1_000_000, {"user": "a"})
    run.finish()
    assert (run.requests, run.delayed, run.refused) == (5, 4, 0)
