"""What is kept of decisions: which rule's, whose, how many as rows, and all of them as counts."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from headgate import Decision, Limiter, Rule
from headgate.audit.buffer import OTHER, Buffer
from headgate.audit.digest import Digest
from headgate.audit.options import AuditOptions
from headgate.core.check import Block
from headgate.core.decision_factory import refuse_blocked
from headgate.db.events import MAX_TEXT, MINUTE_US, Count, Event, EventBatch
from headgate.rules import Snapshot
from headgate.testing import FakeClock

RUN = "019a3f0c2b17e4d2"
START = 1_700_000_000.0
MINUTE = 1_700_000_000_000_000 - 1_700_000_000_000_000 % MINUTE_US
FACTS = ["device", "strange", "session_token", "authorization", "note", *(f"fact-{number}" for number in range(100))]


class World:
    """A limiter, a buffer that hears of what it refuses, and batches of that."""

    def __init__(self, *rules: Rule, **options: Any) -> None:
        self.clock = FakeClock(START)
        self.limiter = Limiter(Snapshot(rules, facts=FACTS), clock=self.clock)
        self.options = AuditOptions(**options)
        self.buffer = Buffer("node-1", self.options)
        self.digest = Digest(RUN, self.options.subjects)

    def ask(self, cost: int = 1, **facts: Any) -> Decision:
        decision = self.limiter.check(cost=cost, **facts)
        if not decision.allowed or decision.reason == "shadow":
            self.buffer.add(facts, cost, decision)
        return decision

    def batch(self) -> EventBatch:
        window = self.buffer.take()
        assert window is not None
        return self.digest.batch(window)

    def events(self) -> list[Event]:
        return list(self.batch().events)

    def counts(self) -> dict[tuple[str, str, str], int]:
        return counted(self.batch().counts)


def counted(counts: Any) -> dict[tuple[str, str, str], int]:
    """Events by rule, dimension and subject; each of which is there once."""
    found: dict[tuple[str, str, str], int] = {}
    for count in counts:
        assert (count.rule, count.dimension, count.subject) not in found
        found[count.rule, count.dimension, count.subject] = count.events
    return found


def rule(name: str, quota: str = "1/hour", **fields: Any) -> Rule:
    return Rule(id=name, quota=quota, **fields)


def test_an_event_has_what_was_decided_and_for_whom() -> None:
    world = World(rule("search", "10/hour gcra"))
    facts = {"user": "alice", "ip": "192.0.2.7", "api_key": "hash", "tenant": "acme", "endpoint": "/search"}
    facts |= {"method": "GET", "tier": "free", "country": "DE"}
    world.ask(cost=10, **facts)
    world.clock.advance(1.5)
    decision = world.ask(cost=3, **facts)
    assert world.events() == [
        Event(
            id=decision.id,
            at_us=1_700_000_001_500_000,
            node="node-1",
            rule="search",
            reason="over_limit",
            allowed=False,
            dimension="user",
            subject="alice",
            user="alice",
            ip="192.0.2.7",
            api_key="hash",
            tenant="acme",
            endpoint="/search",
            method="GET",
            tier="free",
            facts={"country": "DE"},
            cost=3,
            limit=10,
            remaining=0,
            retry_after_us=3 * 360_000_000 - 1_500_000,
            weight=1,
        )
    ]


def test_what_never_fits_has_no_time_to_retry_after() -> None:
    world = World(rule("search", "10/hour"))
    world.ask(cost=11, user="alice")
    assert world.events()[0].retry_after_us is None


def test_of_several_refusing_rules_the_one_that_binds_is_told() -> None:
    world = World(rule("minute", "1/minute fixed_window"), rule("hour", "1/hour fixed_window", dimension="ip"))
    world.ask(user="alice", ip="192.0.2.7")
    decision = world.ask(user="alice", ip="192.0.2.7")
    (event,) = world.events()
    assert decision.rule == "hour"
    assert (event.rule, event.dimension, event.subject) == ("hour", "ip", "192.0.2.7")
    assert event.retry_after_us == round((decision.retry_after or 0) * 1_000_000)


def test_each_shadow_that_would_have_refused_is_an_event() -> None:
    world = World(
        rule("real", "100/hour"),
        rule("strict", "1/hour", action="log_only"),
        rule("stricter", "1/day", action="log_only"),
        rule("generous", "50/hour", action="log_only"),
    )
    world.ask(user="alice")
    assert world.ask(user="alice").rule == "real"  # of the decision, which is no help here
    batch = world.batch()
    assert [(event.rule, event.reason, event.allowed) for event in batch.events] == [
        ("strict", "shadow", True),
        ("stricter", "shadow", True),
    ]
    assert counted(batch.counts)["strict", "user", "alice"] == 1


def test_an_event_of_a_rule_that_annotates_says_so() -> None:
    world = World(rule("soft", "1/hour", action="annotate"), rule("trial", "1/hour", action="log_only"))
    for _ in range(2):
        world.ask(user="alice")
    batch = world.batch()
    assert [(event.rule, event.reason, event.allowed) for event in batch.events] == [
        ("soft", "annotate", True),
        ("trial", "shadow", True),
    ]
    assert {(count.rule, count.reason) for count in batch.counts} == {("soft", "annotate"), ("trial", "shadow")}


def test_what_is_neither_refused_nor_a_shadows_is_no_event() -> None:
    world = World(rule("real", "100/hour"))
    world.buffer.add({"user": "alice"}, 1, world.limiter.check(user="alice"))
    assert world.buffer.take() is None
    assert world.buffer.recorded == 0


@pytest.mark.parametrize(
    ("dimension", "facts", "subject"),
    [
        ("global", {}, ""),
        ("user", {"user": "alice"}, "alice"),
        ("user", {"user": ""}, ""),
        ("device", {"device": "d1"}, "d1"),
        ("user+endpoint", {"user": "alice", "endpoint": "/a//b"}, '["alice", "/a/b"]'),
        ("user+ip", {"user": "1:+", "ip": "::1"}, '["1:+", "::1"]'),
    ],
)
def test_subjects(dimension: str, facts: dict[str, Any], subject: str) -> None:
    world = World(rule("r", dimension=dimension))
    world.ask(**facts)
    world.ask(**facts)
    batch = world.batch()
    assert (batch.events[0].dimension, batch.events[0].subject) == (dimension, subject)
    assert Count(MINUTE, "r", "over_limit", dimension, subject, True, 1, 1) in batch.counts


def test_a_decision_that_no_store_made_has_its_subject_from_the_facts() -> None:
    world = World(rule("r", dimension="user+ip"))
    template = world.limiter.check(user="alice", ip="::1").plan.limits[0]
    world.buffer.add(
        {"user": "alice", "ip": "::1"}, 1, refuse_blocked(template, Block(1_000_000, "r"), 1_700_000_000_000_000)
    )
    (event,) = world.events()
    assert (event.reason, event.subject) == ("penalty", '["alice", "::1"]')


def test_events_are_counted_by_rule_by_its_own_subject_and_by_client() -> None:
    world = World(rule("r", dimension="device"))
    for user in ("alice", "alice", "alice", "bob"):
        world.ask(cost=2, device="d", user=user, ip="192.0.2.7")
    batch = world.batch()
    assert counted(batch.counts) == {
        ("r", "", ""): 4,
        ("r", "device", "d"): 4,
        ("r", "user", "alice"): 3,
        ("r", "user", "bob"): 1,
        ("r", "ip", "192.0.2.7"): 4,
    }
    assert {(count.dimension, count.cost) for count in batch.counts if count.own} == {("device", 8)}


def test_counts_are_by_minute() -> None:
    world = World(rule("r"))
    for _ in range(3):
        world.ask(user="alice")
        world.clock.advance(30)
    found = {count.minute_us: count.events for count in world.batch().counts if count.dimension == "user"}
    assert found == {MINUTE: 1, MINUTE + MINUTE_US: 1}  # it began 20 seconds into a minute, and was allowed at first


def test_of_one_clients_flood_some_are_rows_and_all_are_counted() -> None:
    world = World(rule("r"), rows_per_client=5, one_in=100, rows=1_000)
    for _ in range(1 + 1_000):
        world.ask(user="mallory")
    world.ask(user="alice")
    world.ask(user="alice")
    batch = world.batch()
    weights = {name: [one.weight for one in batch.events if one.user == name] for name in ("mallory", "alice")}
    assert weights == {"mallory": [1] * 5 + [100] * 9, "alice": [1]}
    assert counted(batch.counts)["r", "user", "mallory"] == 1_000
    world.ask(user="mallory")
    assert [event.weight for event in world.events()] == [1]  # the next window begins anew


def test_of_many_clients_flood_some_are_rows_and_all_are_counted() -> None:
    world = World(rule("r", dimension="global"), rows=10, one_in=100)
    for number in range(1 + 1_000):
        world.ask(user=f"user-{number}")
    batch = world.batch()
    assert [event.weight for event in batch.events] == [1] * 10 + [100] * 9
    counts = counted(batch.counts)
    assert [counts["r", "user", f"user-{number}"] for number in range(1, 1_001)] == [1] * 1_000
    assert counts["r", "", ""] == 1_000


def test_more_clients_than_there_is_room_for_are_counted_together() -> None:
    world = World(rule("r", dimension="global"), clients=3)
    for number in range(1 + 5):
        world.ask(user=f"user-{number}", ip="192.0.2.7")
    for _ in range(7):
        world.ask(user="user-1", ip="192.0.2.7")  # was there in time
    assert world.counts() == {
        ("r", "", ""): 12,
        ("r", "global", ""): 12,
        ("r", "user", "user-1"): 8,
        ("r", "user", "user-2"): 1,
        ("r", "user", "user-3"): 1,
        ("r", "user", OTHER): 2,
        ("r", "ip", "192.0.2.7"): 10,
        ("r", "ip", OTHER): 2,
    }


def test_more_subjects_in_a_minute_than_there_is_room_for_are_counted_together() -> None:
    world = World(rule("r", dimension="global"), subjects=2)
    world.ask()
    for number in range(4):
        world.ask(user=f"user-{number}")
        world.ask(user="user-0")
        found = world.counts()  # a batch each: the room is for the minute, not for a batch
        assert found["r", "user", "user-0"] == (2 if number == 0 else 1)
        assert ("r", "user", f"user-{number}") in found if number < 2 else found["r", "user", OTHER] == 1
    world.clock.advance(60)
    world.ask(user="user-3")
    assert world.counts()["r", "user", "user-3"] == 1


def test_a_flood_of_subjects_fits_into_little_memory(thorough: bool) -> None:
    flood = 500_000 if thorough else 200_000  # many times what is kept of them
    world = World(rule("r", dimension="global"))
    world.ask()
    decision = world.limiter.check()
    for number in range(flood):
        world.buffer.add({"user": f"user-{number}"}, 1, decision)
    window = world.buffer.take()
    assert window is not None
    assert len(window.tallies) <= world.options.clients + 1
    assert len(window.rows) <= world.options.rows + flood // world.options.one_in // 10
    batch = world.digest.batch(window)
    assert counted(batch.counts)["r", "", ""] == flood
    assert sum(count.events for count in batch.counts if count.dimension == "user") == flood
    assert sys.getsizeof(world.digest._seen) < 2_000_000


def test_long_and_unstorable_texts_are_kept_as_far_as_they_can_be() -> None:
    world = World(rule("r", dimension="global"))
    world.ask()
    long, other = "x" * 5_000 + "1", "x" * 5_000 + "2"
    for user in (long, other, "nul\0", "lone \udc80"):
        world.ask(user=user, endpoint=user, strange=user)
    batch = world.batch()
    users = [event.user or "" for event in batch.events]
    assert len(set(users)) == 4
    assert [len(user) for user in users] == [MAX_TEXT, MAX_TEXT, 4, 6]
    assert users[2:] == ["nul\N{REPLACEMENT CHARACTER}", "lone ?"]
    assert all(event.endpoint == event.user == event.facts["strange"] for event in batch.events)
    assert {subject for _, dimension, subject in counted(batch.counts) if dimension == "user"} == set(users)


def test_facts_without_a_column_are_bounded_in_number() -> None:
    world = World(rule("r", dimension="global"))
    world.ask()
    facts: dict[str, Any] = {f"fact-{number}": "x" for number in range(100)}
    world.ask(**facts)
    assert list(world.events()[0].facts) == [f"fact-{number}" for number in range(16)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retention", 0),
        ("retention", True),
        ("flush_seconds", 0),
        ("write_seconds", float("nan")),
        ("spool_bytes", 1.5),
        ("spool_bytes", 1_000),
        ("rows_per_client", 0),
        ("rows", "many"),
        ("one_in", 0),
        ("clients", -1),
        ("subjects", None),
    ],
)
def test_options_that_make_no_sense_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: must be .*, got {value!r}$"):
        AuditOptions(**{field: value})  # type: ignore[arg-type]


def test_credentials_are_masked_wherever_they_come() -> None:
    rules = [
        Rule(id="by-token", quota="1/minute", dimension="session_token"),
        Rule(id="by-user", quota="1/minute", dimension="user"),
    ]
    world = World(*rules)
    token = "hg_" + "a" * 43
    secrets: Any = {"session_token": "s3cr3t-session", "authorization": "Bearer abcdefghijkl", "country": "DE"}
    for _ in range(3):
        world.ask(
            user=f"me {token}", endpoint="/reset?token=12345", note=f"jwt eyJhbGciOi.eyJzdWIi.c2ln {token}", **secrets
        )
        world.ask(user="alice", country="DE")
    batch = world.batch()
    kept = repr(batch)
    for secret in ("s3cr3t-session", "abcdefghijkl", token, "12345", "eyJhbGciOi"):
        assert secret not in kept
    facts = batch.events[0].facts
    assert facts == {"session_token": "***", "authorization": "***", "country": "DE", "note": "jwt *** hg_***"}
    assert {count.subject for count in batch.counts if count.dimension == "session_token"} == {"***"}
    assert "alice" in {count.subject for count in batch.counts}
    assert {event.user for event in batch.events} == {"me hg_***", "alice"}
    assert {event.endpoint for event in batch.events} == {"/reset?token=***", None}
