"""Terms, the binding check, and the keys of penalties."""

from __future__ import annotations

import pytest

from headgate.core.check import MAX_BLOCK_US, NEVER, Check, Outcome, Terms, binding
from headgate.core.key import key_template, penalty_keys
from headgate.core.quota import Quota

MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("violations", "blocked"),
    [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 4), (6, 8), (7, 8), (1_000, 8)],
)
def test_the_escalation_by_hand(violations: int, blocked: int) -> None:
    assert Terms(3_600_000_000, 3, (1, 2, 4, 8)).block_us(violations, MINUTE) == blocked * MINUTE


def test_multipliers_need_not_grow_and_one_is_enough() -> None:
    assert [Terms(1, 1, (5,)).block_us(n, 10) for n in (1, 2, 3)] == [50, 50, 50]
    assert [Terms(1, 1, (5, 1, 3)).block_us(n, 10) for n in (1, 2, 3, 4)] == [50, 10, 30, 30]


def test_no_block_is_longer_than_a_hundred_years() -> None:
    assert Terms(1, 1, (1_000_000,)).block_us(1, 366 * 86_400_000_000) == MAX_BLOCK_US


def check(rule: str, *, enforced: bool = True, cost: int = 1) -> Check:
    return Check(rule, key_template("user", rule, "gcra"), "alice", Quota(10, 60, algorithm="gcra"), cost, enforced)


@pytest.mark.parametrize(
    ("outcomes", "binds"),
    [
        ((Outcome(0, 9, 1), Outcome(0, 9, 1)), None),
        ((Outcome(5, 0, 1), Outcome(0, 9, 1)), "a"),
        ((Outcome(5, 0, 1), Outcome(6, 3, 1)), "b"),
        ((Outcome(5, 0, 1), Outcome(NEVER, 3, 1)), "b"),
        ((Outcome(5, 2, 1), Outcome(5, 1, 1)), "b"),
        ((Outcome(5, 1, 1), Outcome(5, 1, 2)), "b"),
        ((Outcome(5, 1, 1), Outcome(5, 1, 1)), "a"),
    ],
)
def test_the_binding_check(outcomes: tuple[Outcome, ...], binds: str | None) -> None:
    found = binding((check("a"), check("b")), outcomes)
    assert (found and found.rule) == binds


def test_shadows_and_looks_do_not_bind() -> None:
    refused = (Outcome(5, 0, 1), Outcome(9, 0, 1))
    found = binding((check("a"), check("b", enforced=False)), refused)
    assert found is not None
    assert found.rule == "a"
    assert binding((check("a", cost=0), check("b", cost=0)), refused) is None


def test_keys_have_the_client_as_hash_tag_and_do_not_collide() -> None:
    assert penalty_keys("user", "alice") == ("penalty:{alice}:user:block", "penalty:{alice}:user:violations")
    names = ["", "a", "a}", "{a", "a:user", "%", "é", "x" * 200]
    keys = {key for fact in ("user", "ip", "api_key") for name in names for key in penalty_keys(fact, name)}
    assert len(keys) == 2 * 3 * len(names)
    assert all(key.count("{") == key.count("}") == 1 for key in keys)
