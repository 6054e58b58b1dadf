"""Allowance: how much work clients may cause for nothing, and how they earn more."""

from __future__ import annotations

from headgate.service.http2.allowance import (
    ADMITTED,
    FRAME,
    LEAST,
    LITTLE,
    MAX_SAVED,
    PER_SECOND,
    PER_SECOND_OF_STRANGERS,
    REQUEST,
    Allowance,
    CommonAllowance,
    units_of_block,
    units_of_decompressed,
)
from headgate.service.http2.receiver import MAX_STREAMS


def test_it_ends_and_comes_back_once_a_second() -> None:
    allowance = Allowance()
    assert allowance.spend(PER_SECOND)
    assert not allowance.spend(1)
    allowance.refill()
    assert allowance.left == PER_SECOND


def test_calls_that_are_admitted_pay_for_the_frames_around_them() -> None:
    """A ping, and updates of windows, with each call: any number of calls."""
    allowance = Allowance()
    for _ in range(100_000):
        assert allowance.spend(REQUEST + 6 * FRAME)
        allowance.earn(REQUEST + ADMITTED)
    assert allowance.left == MAX_SAVED


def test_what_is_earned_is_kept_but_not_hoarded() -> None:
    allowance = Allowance()
    allowance.earn(10 * MAX_SAVED)
    assert allowance.left == MAX_SAVED
    allowance.refill()
    assert allowance.left == MAX_SAVED


def test_strangers_wait_for_one_another_those_first_who_have_spent_most() -> None:
    strangers = CommonAllowance()
    ones = {spent: Allowance() for spent in (LEAST, LITTLE, LITTLE + 1, PER_SECOND)}
    for spent, one in ones.items():
        one.spend(spent)

    def waiting() -> list[int]:
        return [spent for spent, one in ones.items() if strangers.must_wait(one)]

    assert waiting() == []
    strangers.left = -1
    assert waiting() == [LITTLE + 1, PER_SECOND]
    strangers.left = -PER_SECOND_OF_STRANGERS
    assert waiting() == [LITTLE, LITTLE + 1, PER_SECOND]
    strangers.refill()
    assert waiting() == []


def test_there_is_enough_to_begin_all_calls_that_a_connection_may_have() -> None:
    """Each with header fields that no other has, before it is known who asks."""
    assert MAX_STREAMS * (REQUEST + units_of_block(120, 9)) <= PER_SECOND
    assert units_of_decompressed(4 * 1024 * 1024) < PER_SECOND
