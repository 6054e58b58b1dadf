"""Limiters agree: one in memory and one on Redis answer alike to everything that a caller can do.

test_twins.py compares the stores, limit by limit. Here whole limiters get the same calls at the same times: several
rules at once that change meanwhile, overrides, units, calendars, slots, reservations, penalties, idempotency keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from headgate import Limiter, RateLimited, Rule
from headgate.core.quota import BUCKETS
from headgate.errors import HeadgateError
from headgate.rules import Override, Snapshot, User
from headgate.rules.penalties import Penalties
from headgate.testing import FakeClock
from tests.conftest import TIMEOUT
from tests.property.strategies import SIX
from tests.servers import Server

START = 1_700_000_000.0
STEPS = 100
KINDS = {  # what a caller does, and how often
    "check": 10,
    "advance": 8,
    "peek": 3,
    "reset": 1,
    "reload": 1,
    "check_many": 2,
    "reserve": 2,
    "settle": 2,
    "acquire": 3,
    "release": 2,
    "renew": 1,
    "give_back": 1,
    "correct": 1,
    "repeat": 1,
}
COSTS: tuple[Any, ...] = (
    0,
    1,
    1,
    1,
    1,
    2,
    5,
    100,
    {"requests": 1, "tokens": 4},
    {"requests": 1, "tokens": 0},
    {"tokens": 3},
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing: units that no rule counts are part of the game."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_limiters_in_memory_and_on_redis_agree(one_server: Server, thorough: bool) -> None:
    for seed in range(400 if thorough else 40):
        one_server.client().flushall()
        Pair(Random(seed), one_server.url).play(f"seed {seed}")


class Pair:
    """Two limiters with the same rules, and what they have in common: open reservations, slots and decisions."""

    def __init__(self, random: Random, url: str) -> None:
        self.random = random
        rules = rules_by(random)
        self.users = users_by(random, rules)
        self.snapshot = Snapshot(rules, users=self.users, penalties=penalties_by(random))
        self.clocks = [FakeClock(START), FakeClock(START)]
        stores = ("memory://", f"{url}?{TIMEOUT}")
        self.limiters = [
            Limiter(self.snapshot, store=store, clock=clock) for store, clock in zip(stores, self.clocks, strict=True)
        ]
        self.open: dict[str, list[list[Any]]] = {"reservations": [], "slots": [], "decisions": []}

    def play(self, game: str) -> None:
        done = []
        for _ in range(STEPS):
            (kind,) = self.random.choices(list(KINDS), list(KINDS.values()))
            facts = {
                "user": self.random.choice(["alice", "bob", "carol", "dave{x}"]),
                "tenant": self._one_of("t1", "t2"),
            }
            cost = self.random.choice(COSTS)
            done.append((kind, facts, cost))
            answers = self._do(kind, facts, cost)
            assert answers[0] == answers[1], f"{game}, {kind} of {self.snapshot.rules}, after {done[-10:]}"
        for limiter in self.limiters:
            limiter.close()

    def _do(self, kind: str, facts: dict[str, Any], cost: Any) -> list[Any]:
        if kind == "advance":
            seconds = self.random.choice([0.001, 0.1, 0.25, 1, 1.0000005, 2, 5, 11, 61, 3600, 400_000])
            for clock in self.clocks:
                clock.advance(seconds)
            return [None, None]
        if kind == "reload":
            rules = [changed(self.random, rule) for rule in self.snapshot.rules]
            self.snapshot = Snapshot(rules, users=self.users, penalties=self.snapshot.penalties)
            for limiter in self.limiters:
                limiter.holder.swap(self.snapshot)
            return [None, None]
        if kind in ("check", "peek", "reset"):
            arguments = facts if kind == "reset" else {**facts, "cost": cost}
            answers = self._both(lambda limiter, _: getattr(limiter, kind)(**arguments))
            return self._keep("decisions", answers) if kind == "check" else list(map(shown, answers))
        if kind == "repeat":
            key = self.random.choice("abc")
            return list(
                map(shown, self._both(lambda limiter, _: limiter.check(**facts, cost=cost, idempotency_key=key)))
            )
        if kind == "check_many":
            requests = [{**facts, "cost": self._one_of(1, 2)} for _ in range(5)]
            return self._both(lambda limiter, _: list(map(shown, limiter.check_many(requests))))
        if kind == "reserve":
            ttl = self._one_of(1, 30)
            return self._keep(
                "reservations", self._both(lambda limiter, _: limiter.reserve(**facts, cost=cost, ttl=ttl))
            )
        if kind == "acquire":
            taken = self._one_of(1, 2)
            return self._keep("slots", self._both(lambda limiter, _: limiter.acquire(**facts, cost=taken).__enter__()))
        return self._finish(kind)

    def _finish(self, kind: str) -> list[Any]:
        """Do something with an open reservation, slot or decision, if there is one."""
        of_kind = {"settle": "reservations", "release": "slots", "renew": "slots"}
        known = self.open[of_kind.get(kind, "decisions")]
        if not known:
            return [None, None]
        index = self.random.randrange(len(known))
        ones = known[index] if kind == "renew" else known.pop(index)
        cost = self.random.choice([0, 1, 4, 200])
        if kind == "settle":
            return self._both(lambda _, at: ones[at].settle(cost))
        if kind == "give_back":
            return self._both(lambda limiter, at: limiter.give_back(ones[at]))
        if kind == "correct":
            return self._both(lambda limiter, at: limiter.correct(ones[at], cost))
        return self._both(lambda _, at: getattr(ones[at], kind)())

    def _both(self, call: Callable[[Limiter, int], Any]) -> list[Any]:
        answers: list[Any] = []
        for at, limiter in enumerate(self.limiters):
            try:
                answers.append(call(limiter, at))
            except HeadgateError as error:
                refused = shown(error.decision) if isinstance(error, RateLimited) else str(error)
                answers.append((type(error).__name__, refused))
        return answers

    def _keep(self, name: str, answers: list[Any]) -> list[Any]:
        """Keep what both limiters gave, to be used later."""
        if not any(isinstance(answer, tuple) for answer in answers):
            self.open[name].append(answers)
            answers = [getattr(answer, "decision", answer) for answer in answers]
        return list(map(shown, answers))

    def _one_of(self, *choices: Any) -> Any:
        return self.random.choice(choices)


def shown(answer: Any) -> Any:
    """A decision's figures without its id; anything else as it is."""
    return {**answer.as_dict(), "decision_id": ""} if hasattr(answer, "as_dict") else answer


def rules_by(random: Random) -> list[Rule]:
    rules = []
    for number in range(random.randint(1, 4)):
        algorithm = random.choice(SIX)
        burst = f" burst {random.choice([1, 2, 5, 20])}" if algorithm in SIX[3:] and random.random() < 0.5 else ""
        quota = f"{random.choice([1, 2, 3, 5, 10, 33])}/{random.choice([1, 2, 7, 10, 60])}s{burst} {algorithm}"
        action: Any = random.choice(["reject"] * 8 + ["log_only", "annotate", "throttle"])
        more: dict[str, Any] = {"max_delay": "2s"} if action == "throttle" else {}
        rules.append(
            Rule(
                id=f"rule-{number}",
                quota=quota,
                dimension=random.choice(["user", "tenant", "global", "user+tenant"]),
                action=action,
                cost=random.choice([1, 1, 1, 2]),
                unit=random.choice(["requests"] * 3 + ["tokens"]),
                **more,
            )
        )
    if random.random() < 0.4:
        quota = f"{random.choice([3, 9, 40])}/calendar {random.choice(['day', 'week', 'month'])} tz Europe/Berlin"
        rules.append(Rule(id="calendar", quota=quota, dimension="user"))
    if random.random() < 0.4:
        quota = f"{random.choice([1, 2, 3])} concurrent ttl {random.choice([2, 10])}s"
        rules.append(Rule(id="slots", quota=quota, dimension="user"))
    return rules


def changed(random: Random, rule: Rule) -> Rule:
    """A rule with another limit: of a bucket, a higher one with the same burst.

    A store may forget a state that has no meaning under its quota. Whether it has is its own affair, until a longer
    window or a slower rate gives it a meaning again.
    """
    quota, factor = rule.quota, random.choice([1, 2, 3])
    if quota.algorithm in BUCKETS:
        return replace(rule, quota=quota.with_rate(factor * quota.limit, quota.burst))
    return replace(rule, quota=quota.with_limit(max(1, random.choice([factor * quota.limit, quota.limit // factor]))))


def users_by(random: Random, rules: list[Rule]) -> list[User]:
    users = []
    for name in ("alice", "bob"):
        own = [rule for rule in rules if rule.dimension == "user" and rule.id != "slots" and random.random() < 0.4]
        overrides = [Override(rule=rule.id, limit=random.choice([1, 4, 50])) for rule in own]
        users.append(User(id=name, overrides=overrides, anchor=random.choice([None, None, 1, 15, 22, "tuesday"])))
    return users


def penalties_by(random: Random) -> Penalties:
    enabled, threshold = random.random() < 0.4, random.choice([1, 2, 4])
    return Penalties(enabled=enabled, detection_window="60s", violation_threshold=threshold, multipliers=(1, 2))
