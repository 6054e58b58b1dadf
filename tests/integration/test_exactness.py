"""Never over, and never under: eight processes of 64 tasks each, on one limit, admit exactly what it allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import Decision, Limiter
from tests.integration.hammer import rules_of
from tests.integration.limiters import ALGORITHMS, calm_window
from tests.integration.workers import Workers

PROCESSES = 8
TASKS = 64
LIMIT = 10_000


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    workers = Workers("tests.integration.hammer", PROCESSES)
    yield workers
    workers.close()


def rule(name: str, algorithm: str, *, limit: int = LIMIT, dimension: str = "user") -> dict[str, Any]:
    return {
        "id": name,
        "dimension": dimension,
        "limit": limit,
        "window": calm_window(),
        "algorithm": algorithm,
    }


def job(url: str, rules: list[dict[str, Any]], *, checks_per_task: int, **facts: str | int) -> dict[str, Any]:
    return {"url": url, "rules": rules, "facts": facts, "tasks": TASKS, "checks_per_task": checks_per_task}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_eight_processes_admit_exactly_the_limit(
    workers: Workers, redis_url: str, algorithm: str, thorough: bool
) -> None:
    limit, checks_per_task = (LIMIT, 30) if thorough else (2_000, 6)  # half as many checks again as the limit
    shared = job(redis_url, [rule("one", algorithm, limit=limit)], checks_per_task=checks_per_task, user="alice")
    counted = sum(map(Counter, workers.run([shared] * PROCESSES)), Counter[str]())
    offered = PROCESSES * TASKS * checks_per_task
    assert counted == {"within_limit": limit, "over_limit": offered - limit}
    with Limiter(rules_of(shared), store=redis_url) as limiter:
        after = limiter.peek(user="alice")
        assert (after.allowed, after.remaining, after.limit) == (False, 0, limit)
        assert limiter.peek(user="bob").remaining == limit


@pytest.mark.parametrize(
    ("user_algorithm", "tenant_algorithm", "global_algorithm"),
    [
        ("gcra", "sliding_window_counter", "token_bucket"),
        ("sliding_window_log", "leaky_bucket", "fixed_window"),
        ("token_bucket", "sliding_window_log", "gcra"),
    ],
)
def test_a_refused_group_charges_none_of_its_limits(
    workers: Workers, redis_url: str, user_algorithm: str, tenant_algorithm: str, global_algorithm: str
) -> None:
    left = 1_000  # of the tenant's limit; its 8 users and the world as a whole have plenty
    rules = [
        rule("each-user", user_algorithm, limit=5_000),
        rule("each-tenant", tenant_algorithm, dimension="tenant"),
        rule("everybody", global_algorithm, limit=3 * LIMIT, dimension="global"),
    ]
    users = [f"user-{number}" for number in range(PROCESSES)]
    jobs = [job(redis_url, rules, checks_per_task=6, user=user, tenant="acme") for user in users]
    with Limiter(rules_of(jobs[0]), store=redis_url) as limiter:
        assert limiter.check(tenant="acme", cost=LIMIT - left)

        counted = [Counter(answer) for answer in workers.run(jobs)]

        assert all(sum(each.values()) == TASKS * 6 for each in counted)
        assert set().union(*counted) == {"within_limit", "over_limit"}
        admitted = [each["within_limit"] for each in counted]
        assert sum(admitted) == left
        for user, count in zip(users, admitted, strict=True):
            after = remaining(limiter.peek(user=user, tenant="acme"))
            assert after == {
                "each-user": 5_000 - count,
                "each-tenant": 0,
                "everybody": 3 * LIMIT - LIMIT,
            }


def remaining(decision: Decision) -> dict[str, int]:
    return {status.rule: status.remaining for status in decision.limits}


def test_of_costs_of_seven_the_most_that_fit_are_admitted(workers: Workers, redis_url: str) -> None:
    shared = job(redis_url, [rule("heavy", "gcra")], checks_per_task=6, user="alice", cost=7)
    counted = sum(map(Counter, workers.run([shared] * PROCESSES)), Counter[str]())
    assert counted["within_limit"] == LIMIT // 7
    with Limiter(rules_of(shared), store=redis_url) as limiter:
        assert limiter.peek(user="alice").remaining == LIMIT % 7
