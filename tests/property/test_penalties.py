"""Penalties against a plain model that keeps everything in lists: memory and Redis say what it says, at every step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.core.check import (
    IDEMPOTENCY_US,
    NEVER,
    Block,
    Check,
    Client,
    Group,
    Idempotency,
    Penalty,
    Result,
    Terms,
)
from headgate.core.key import key_template
from headgate.core.quota import BUCKETS, WINDOWS, Quota
from headgate.errors import IdempotencyConflict
from headgate.stores.memory import MemoryStore, tables
from headgate.stores.protocol import Store
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.property import strategies

START: Final = 1_700_000_000
SECOND: Final = 1_000_000
examples = count()  # each example has clients of its own, so that a server need not be emptied in between


@pytest.fixture(autouse=True)
def without_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a memory store has swept away as moot is gone even if the clock then goes back, and that may differ."""
    monkeypatch.setattr(tables, "SWEEP", 0)


class Model:
    """What was said of penalties, in so many words. The limits themselves are a store's that knows no penalties."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.limits = MemoryStore(clock=clock)
        self.violations: dict[Client, list[int]] = {}
        self.blocks: dict[Client, tuple[int, int, str]] = {}
        self.answers: dict[str, tuple[str, Result]] = {}

    def check(self, group: Group) -> Result | IdempotencyConflict:
        if group.idempotency is None or group.peek:
            return self.decide(group)
        key, fingerprint, *_ = group.idempotency
        known = self.answers.get(key)
        if known is None or self.clock.now_us() - known[1].now_us >= IDEMPOTENCY_US:
            known = self.answers[key] = (fingerprint, self.decide(group))
        return known[1] if known[0] == fingerprint else IdempotencyConflict.of(key)

    def decide(self, group: Group) -> Result:
        assert group.penalty is not None
        now, (client, terms) = self.clock.now_us(), group.penalty
        if client in self.blocks:
            ends, length, rule = self.blocks[client]
            ends = min(ends, now + length)
            if not group.peek:
                self.blocks[client] = (ends, length, rule)
            if ends > now:
                return Result(now, (), Block(ends - now, rule))
        (result,) = self.limits.check([Group(group.checks, group.peek)])
        assert isinstance(result, Result)
        refused = [
            (
                float("inf") if outcome.wait_us == NEVER else outcome.wait_us,
                -outcome.remaining,
                outcome.reset_us,
                -place,
            )
            for place, (check, outcome) in enumerate(zip(group.checks, result.outcomes, strict=True))
            if check.enforced and outcome.wait_us != 0 and check.cost > 0
        ]
        if group.peek or not refused:
            return result
        times = [min(time, now) for time in self.violations.get(client, [])]
        times = [*(time for time in times if time > now - terms.detection_us), now][-1_000:]
        self.violations[client] = times
        if len(times) < terms.threshold:
            return result
        binds = group.checks[-max(refused)[3]]
        multipliers = [*terms.multipliers, *[terms.multipliers[-1]] * len(times)]
        length = binds.quota.window_us * multipliers[len(times) - terms.threshold]
        self.blocks[client] = (now + length, length, binds.rule)
        return result._replace(block=Block(length, binds.rule))

    def reset(self, checks: tuple[Check, ...], client: Client) -> None:
        self.limits.reset(checks)
        self.violations.pop(client, None)
        self.blocks.pop(client, None)


quotas = st.builds(
    Quota,
    st.integers(1, 3),
    st.sampled_from([1, 7, 60]),
    algorithm=st.sampled_from([*WINDOWS, *BUCKETS]),
)
all_terms = st.builds(
    Terms,
    st.sampled_from([SECOND, 30 * SECOND, 600 * SECOND]),
    st.integers(1, 4),
    st.lists(st.integers(1, 8), min_size=1, max_size=4).map(tuple),
)
who = st.sampled_from([0, 0, 0, 1])
cost = st.sampled_from([1, 1, 2, 4, 0])  # of limits from 1 to 3: 4 never fits
seconds = st.one_of(st.sampled_from([0.000_001, 1.0, 60.0]), st.integers(-20_000, 90_000).map(lambda ms: ms / 1_000))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("check"), who, cost),
        st.tuples(st.just("refused"), who, st.just(4)),
        st.tuples(st.just("peek"), who, cost),
        st.tuples(st.just("once"), who, st.integers(1, 2)),
        st.tuples(st.just("advance"), who, seconds),
        st.tuples(st.just("block's end"), who, st.sampled_from([-1, 0])),  # or a microsecond before it
        st.tuples(st.just("violation's end"), who, st.sampled_from([-1, 0])),
        st.tuples(st.just("reset"), who, st.just(0)),
    ),
    min_size=10,
    max_size=40,
)


def run(
    store: Store, clock: FakeClock, rules: list[tuple[Quota, bool]], terms: Terms, steps: list[tuple[str, int, Any]]
) -> None:
    model, example = Model(clock), next(examples)
    for step, who, value in steps:
        name = f"{example}-{who}"
        client = Client("user", name)
        cost = value if step in ("check", "refused", "peek", "once") else 4
        checks = tuple(
            Check(f"rule {place}", key_template("user", f"{place}", quota.algorithm), name, quota, cost, enforced)
            for place, (quota, enforced) in enumerate(rules)
        )
        if step == "reset":
            store.reset(checks, [client])
            model.reset(checks, client)
        if step == "advance":
            clock.advance(value)
        if step == "block's end":
            ends, _, _ = model.blocks.get(client, (0, 0, ""))
            clock.advance(max(0, ends + value - clock.now_us()) / SECOND)
        if step == "violation's end":
            oldest = min(model.violations.get(client, [0]))
            clock.advance(max(0, oldest + terms.detection_us + value - clock.now_us()) / SECOND)
        once = Idempotency(f"{example}-{cost}", str(who)) if step == "once" else None
        group = Group(checks, step == "peek", once, Penalty(client, terms))
        (result,), expected = store.check([group]), model.check(group)
        if isinstance(expected, IdempotencyConflict):
            assert isinstance(result, IdempotencyConflict)
        else:
            assert result == expected


several_rules = st.lists(st.tuples(quotas, st.booleans()), min_size=1, max_size=3)


@settings(strategies.examples(400), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=several_rules, terms=all_terms, steps=steps)
def test_memory_says_what_the_model_says(
    rules: list[tuple[Quota, bool]], terms: Terms, steps: list[tuple[str, int, Any]]
) -> None:
    clock = FakeClock(START)
    run(MemoryStore(clock=clock), clock, rules, terms, steps)


@pytest.fixture
def redis_store(redis_url: str, clock: FakeClock) -> Iterator[RedisStore]:
    store = RedisStore(redis_url, clock=clock)
    yield store
    store.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@settings(strategies.examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=several_rules, terms=all_terms, steps=steps)
def test_redis_says_what_the_model_says(
    redis_store: RedisStore,
    clock: FakeClock,
    rules: list[tuple[Quota, bool]],
    terms: Terms,
    steps: list[tuple[str, int, Any]],
) -> None:
    run(redis_store, clock, rules, terms, steps)
