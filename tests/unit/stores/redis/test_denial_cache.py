"""What is remembered of refusals, for how long, and what makes it be forgotten. No server."""

from __future__ import annotations

import pytest

from headgate import Quota
from headgate.core.check import NEVER, Check, Client, Group, Idempotency, Outcome, Penalty, Result, Terms
from headgate.core.key import key_template
from headgate.stores.redis.denial_cache import REMEMBERED, DenialCache
from headgate.testing import FakeClock

SPACE = key_template("user", "r", "fixed_window")
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
def denials(clock: FakeClock) -> DenialCache:
    return DenialCache(SECOND, clock)


def learn(denials: DenialCache, asked: Group, *outcomes: Outcome) -> None:
    result = Result(7, outcomes or (REFUSED,))
    denials.learn([asked], [result], denials.now_us(), denials.epoch)


def knows(denials: DenialCache, asked: Group) -> bool:
    return denials.answers([asked]) != [None]


def test_what_was_refused_is_told_again_counted_down(denials: DenialCache, clock: FakeClock) -> None:
    learn(denials, group())
    clock.advance(0.25)
    assert denials.answers([group(), group(check("bob"))]) == [
        Result(7 + 250_000, (Outcome(29_750_000, 0, 29_750_000),)),
        None,
    ]
    assert denials.hits == 1


def test_it_is_forgotten_after_a_second(denials: DenialCache, clock: FakeClock) -> None:
    learn(denials, group())
    clock.advance(0.999999)
    assert knows(denials, group())
    clock.advance(0.000001)
    assert not knows(denials, group())
    assert not denials.known


def test_it_is_forgotten_when_the_wait_is_over(denials: DenialCache, clock: FakeClock) -> None:
    learn(denials, group(), Outcome(1_000, 0, 5_000))
    clock.advance(0.001)
    assert not knows(denials, group())


def test_it_is_forgotten_when_the_clock_goes_back(denials: DenialCache, clock: FakeClock) -> None:
    learn(denials, group())
    clock.advance(-1)
    assert not knows(denials, group())


def test_time_counts_from_when_the_server_was_asked(denials: DenialCache, clock: FakeClock) -> None:
    sent_us = denials.now_us()
    clock.advance(0.4)
    denials.learn([group()], [Result(7, (REFUSED,))], sent_us, denials.epoch)
    clock.advance(0.6)
    assert not knows(denials, group())


@pytest.mark.parametrize(
    "other",
    [check(cost=2), check(quota=Quota(11, 60, algorithm="fixed_window")), check(enforced=False), check("bob")],
    ids=["cost", "limit", "shadow", "subject"],
)
def test_it_is_of_the_same_request_only(denials: DenialCache, other: Check) -> None:
    learn(denials, group())
    assert knows(denials, group(check(quota=Quota(10, 60, algorithm="fixed_window"))))
    assert not knows(denials, group(other))


def test_what_else_is_asked_of_the_same_key_ends_it(denials: DenialCache) -> None:
    """A request that costs less may be allowed, and the other has to wait longer then."""
    learn(denials, group(check(cost=2)), Outcome(30 * SECOND, 1, 30 * SECOND))
    assert not knows(denials, group())
    assert not knows(denials, group(check(cost=2)))


@pytest.mark.parametrize(
    "special",
    [
        group()._replace(peek=True),
        group()._replace(idempotency=Idempotency("key", "print")),
        group()._replace(penalty=Penalty(Client("user", "alice"), Terms(SECOND, 1, (1,)))),
    ],
    ids=["peek", "idempotency", "penalty"],
)
def test_what_is_special_goes_to_the_server_and_teaches_nothing(denials: DenialCache, special: Group) -> None:
    learn(denials, special)
    assert not knows(denials, group())
    learn(denials, group())
    assert not knows(denials, special)


def test_what_was_allowed_or_never_fits_or_only_a_shadow_refused_is_not_remembered(denials: DenialCache) -> None:
    learn(denials, group(), FREE)
    learn(denials, group(), Outcome(NEVER, 3, SECOND))
    learn(denials, group(check(enforced=False)))
    assert not denials.known


def test_groups_are_remembered_as_a_whole(denials: DenialCache, clock: FakeClock) -> None:
    both = group(check(), check("all"))
    learn(denials, both, FREE, REFUSED)
    clock.advance(0.5)
    (result,) = denials.answers([both])
    assert result is not None
    assert result.outcomes == (Outcome(0, 5, 39_500_000), Outcome(29_500_000, 0, 29_500_000))
    assert not knows(denials, group(check("all")))


@pytest.mark.parametrize("asked", [group(), group(check(), check("all"))], ids=["one", "several"])
def test_what_is_given_back_or_reset_is_forgotten(denials: DenialCache, asked: Group) -> None:
    learn(denials, asked, *[REFUSED] * len(asked.checks))
    learn(denials, group(check("bob")))
    denials.drop([check(cost=9)])
    assert not knows(denials, asked)
    assert knows(denials, group(check("bob")))


def test_what_was_asked_before_something_was_given_back_is_not_remembered(denials: DenialCache) -> None:
    sent_us, epoch = denials.now_us(), denials.epoch
    denials.drop([check()])
    denials.learn([group()], [Result(7, (REFUSED,))], sent_us, epoch)
    assert not denials.known


def test_on_a_cluster_several_are_not_remembered_and_what_they_gave_back_is_forgotten(clock: FakeClock) -> None:
    denials = DenialCache(SECOND, clock, slotted=True)
    learn(denials, group())
    learn(denials, group(check(), check("all")), FREE, REFUSED)
    assert not denials.known


def test_it_can_be_off(clock: FakeClock) -> None:
    denials = DenialCache(0, clock)
    learn(denials, group())
    assert not denials.known


def test_it_is_bounded(denials: DenialCache, clock: FakeClock) -> None:
    for number in range(REMEMBERED):
        learn(denials, group(check(str(number))))
    clock.advance(0.5)
    learn(denials, group())
    assert knows(denials, group())
    assert len(denials.known) <= REMEMBERED
    for number in range(REMEMBERED + 10):
        learn(denials, group(check(str(number)), check("all")), REFUSED, REFUSED)
    assert len(denials.known) <= REMEMBERED


def test_what_is_leased_is_not_remembered(denials: DenialCache) -> None:
    learn(denials, group(check()._replace(leased=True)))
    learn(denials, group(check(), check("bob")._replace(leased=True)), REFUSED, FREE)
    assert not denials.known
