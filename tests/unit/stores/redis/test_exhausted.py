"""What is remembered of refusals, for how long, and what makes it be forgotten. No server."""

from __future__ import annotations

import pytest

from headgate import Quota
from headgate.core.check import NEVER, Check, Client, Group, Idempotency, Outcome, Penalty, Result, Terms
from headgate.core.key import space
from headgate.stores.redis.exhausted import REMEMBERED, Exhausted
from headgate.testing import FakeClock

SPACE = space("user", "r", "fixed_window")
QUOTA = Quota(10, 60, algorithm="fixed_window")
SECOND = 1_000_000
REFUSED = Outcome(30 * SECOND, 0, 30 * SECOND)
FREE = Outcome(0, 5, 40 * SECOND)


def check(subject: str = "alice", *, quota: Quota = QUOTA, cost: int = 1, enforced: bool = True) -> Check:
    return Check("r", SPACE, subject, quota, cost, enforced)


def group(*checks: Check) -> Group:
    return Group(checks or (check(),))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def exhausted(clock: FakeClock) -> Exhausted:
    return Exhausted(SECOND, clock)


def learn(exhausted: Exhausted, asked: Group, *outcomes: Outcome) -> None:
    result = Result(7, outcomes or (REFUSED,))
    exhausted.learn([asked], [result], exhausted.now_us(), exhausted.epoch)


def knows(exhausted: Exhausted, asked: Group) -> bool:
    return exhausted.answers([asked]) != [None]


def test_what_was_refused_is_told_again_counted_down(exhausted: Exhausted, clock: FakeClock) -> None:
    learn(exhausted, group())
    clock.advance(0.25)
    assert exhausted.answers([group(), group(check("bob"))]) == [
        Result(7 + 250_000, (Outcome(29_750_000, 0, 29_750_000),)),
        None,
    ]
    assert exhausted.hits == 1


def test_it_is_forgotten_after_a_second(exhausted: Exhausted, clock: FakeClock) -> None:
    learn(exhausted, group())
    clock.advance(0.999999)
    assert knows(exhausted, group())
    clock.advance(0.000001)
    assert not knows(exhausted, group())
    assert not exhausted.known


def test_it_is_forgotten_when_the_wait_is_over(exhausted: Exhausted, clock: FakeClock) -> None:
    learn(exhausted, group(), Outcome(1_000, 0, 5_000))
    clock.advance(0.001)
    assert not knows(exhausted, group())


def test_it_is_forgotten_when_the_clock_goes_back(exhausted: Exhausted, clock: FakeClock) -> None:
    learn(exhausted, group())
    clock.advance(-1)
    assert not knows(exhausted, group())


def test_time_counts_from_when_the_server_was_asked(exhausted: Exhausted, clock: FakeClock) -> None:
    asked_us = exhausted.now_us()
    clock.advance(0.4)
    exhausted.learn([group()], [Result(7, (REFUSED,))], asked_us, exhausted.epoch)
    clock.advance(0.6)
    assert not knows(exhausted, group())


@pytest.mark.parametrize(
    "other",
    [check(cost=2), check(quota=Quota(11, 60, algorithm="fixed_window")), check(enforced=False), check("bob")],
    ids=["cost", "limit", "shadow", "subject"],
)
def test_it_is_of_the_same_request_only(exhausted: Exhausted, other: Check) -> None:
    learn(exhausted, group())
    assert knows(exhausted, group(check(quota=Quota(10, 60, algorithm="fixed_window"))))
    assert not knows(exhausted, group(other))


def test_what_else_is_asked_of_the_same_key_ends_it(exhausted: Exhausted) -> None:
    """A request that costs less may be allowed, and the other has to wait longer then."""
    learn(exhausted, group(check(cost=2)), Outcome(30 * SECOND, 1, 30 * SECOND))
    assert not knows(exhausted, group())
    assert not knows(exhausted, group(check(cost=2)))


@pytest.mark.parametrize(
    "special",
    [
        group()._replace(peek=True),
        group()._replace(idempotency=Idempotency("key", "print")),
        group()._replace(penalty=Penalty(Client("user", "alice"), Terms(SECOND, 1, (1,)))),
    ],
    ids=["peek", "idempotency", "penalty"],
)
def test_what_is_special_goes_to_the_server_and_teaches_nothing(exhausted: Exhausted, special: Group) -> None:
    learn(exhausted, special)
    assert not knows(exhausted, group())
    learn(exhausted, group())
    assert not knows(exhausted, special)


def test_what_was_allowed_or_never_fits_or_only_a_shadow_refused_is_not_remembered(exhausted: Exhausted) -> None:
    learn(exhausted, group(), FREE)
    learn(exhausted, group(), Outcome(NEVER, 3, SECOND))
    learn(exhausted, group(check(enforced=False)))
    assert not exhausted.known


def test_groups_are_remembered_as_a_whole(exhausted: Exhausted, clock: FakeClock) -> None:
    both = group(check(), check("all"))
    learn(exhausted, both, FREE, REFUSED)
    clock.advance(0.5)
    (result,) = exhausted.answers([both])
    assert result is not None
    assert result.outcomes == (Outcome(0, 5, 39_500_000), Outcome(29_500_000, 0, 29_500_000))
    assert not knows(exhausted, group(check("all")))


@pytest.mark.parametrize("asked", [group(), group(check(), check("all"))], ids=["one", "several"])
def test_what_is_given_back_or_reset_is_forgotten(exhausted: Exhausted, asked: Group) -> None:
    learn(exhausted, asked, *[REFUSED] * len(asked.checks))
    learn(exhausted, group(check("bob")))
    exhausted.drop([check(cost=9)])
    assert not knows(exhausted, asked)
    assert knows(exhausted, group(check("bob")))


def test_what_was_asked_before_something_was_given_back_is_not_remembered(exhausted: Exhausted) -> None:
    asked_us, epoch = exhausted.now_us(), exhausted.epoch
    exhausted.drop([check()])
    exhausted.learn([group()], [Result(7, (REFUSED,))], asked_us, epoch)
    assert not exhausted.known


def test_on_a_cluster_several_are_not_remembered_and_what_they_gave_back_is_forgotten(clock: FakeClock) -> None:
    exhausted = Exhausted(SECOND, clock, slotted=True)
    learn(exhausted, group())
    learn(exhausted, group(check(), check("all")), FREE, REFUSED)
    assert not exhausted.known


def test_it_can_be_off(clock: FakeClock) -> None:
    exhausted = Exhausted(0, clock)
    learn(exhausted, group())
    assert not exhausted.known


def test_it_is_bounded(exhausted: Exhausted, clock: FakeClock) -> None:
    for number in range(REMEMBERED):
        learn(exhausted, group(check(str(number))))
    clock.advance(0.5)
    learn(exhausted, group())
    assert knows(exhausted, group())
    assert len(exhausted.known) <= REMEMBERED
    for number in range(REMEMBERED + 10):
        learn(exhausted, group(check(str(number)), check("all")), REFUSED, REFUSED)
    assert len(exhausted.known) <= REMEMBERED


def test_what_is_leased_is_not_remembered(exhausted: Exhausted) -> None:
    learn(exhausted, group(check()._replace(leased=True)))
    learn(exhausted, group(check(), check("bob")._replace(leased=True)), REFUSED, FREE)
    assert not exhausted.known
