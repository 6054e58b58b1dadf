"""One key's lease: how large slices are, when they end, and what becomes of the rest."""

from __future__ import annotations

import pytest

from headgate.core.check import NEVER, Charge, Check, Outcome, Result
from headgate.core.quota import Quota
from headgate.features.leases.lease import (
    GROWTH,
    HORIZON_US,
    LIFE_US,
    LOOK_US,
    PAUSE_US,
    REMEMBER_US,
    SHARE,
    Lease,
    Slice,
    figures,
)

MINUTE = 60_000_000
NOW = 1_700_000_040_000_000  # when a minute begins, by the store's clock
PLENTY = 10**9


def lease_of(
    algorithm: str = "gcra", *, limit: int = 1_000_000, window: float = 60.0, remaining: int = PLENTY
) -> Lease:
    lease = Lease(Check("r", "space", "alice", Quota(limit, window, algorithm=algorithm)), 0)  # type: ignore[arg-type]
    lease.remaining = remaining
    return lease


def slice_of(lease: Lease, size: int, *, now: int = NOW, sent: int = 0, reset: int = 0) -> Slice:
    return Slice(size, Result(now, (Outcome(0, 500, reset),)), lease.quota, sent)


def spent(lease: Lease, tokens: int, elapsed: int) -> int:
    """What is wanted after so much demand, for so long."""
    lease.count_direct(tokens)
    return lease.fetch_size(elapsed)


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "gcra"])
def test_a_bucket_s_slice_ends_within_a_second_of_when_it_was_asked_for(algorithm: str) -> None:
    piece = slice_of(lease_of(algorithm), 10, sent=5_000)
    assert 5_000 + LIFE_US - LIFE_US // 1_000 <= piece.until_us < 5_000 + LIFE_US


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter"])
def test_a_window_s_slice_ends_with_its_window_counted_from_when_it_was_asked_for(algorithm: str) -> None:
    lease = lease_of(algorithm)
    early = slice_of(lease, 10, now=NOW + 1, sent=5_000)
    assert early.until_us < 5_000 + LIFE_US
    late = slice_of(lease, 10, now=NOW + MINUTE - 2_048, sent=5_000)
    assert late.until_us == 5_000 + 2_048 - 2
    assert late.over_us == 5_000 + 2_048


def test_a_slice_is_what_is_expected_to_be_spent_soon() -> None:
    lease = lease_of()
    lease.add(slice_of(lease, 1_000))
    lease.take(600, 10_000)
    assert lease.fetch_size(10_000) == 600 * HORIZON_US // 10_000 - 400 or lease.fetch_size(10_000) == 0
    lease = lease_of()
    assert spent(lease, 1_000, HORIZON_US) == 1_000


def test_it_grows_by_steps() -> None:
    assert spent(lease_of(), 10, LOOK_US) == GROWTH * 10


def test_it_is_a_share_of_what_is_left_and_comes_to_nothing_near_the_limit() -> None:
    sizes = [spent(lease_of(remaining=remaining), 1_000, 10_000) for remaining in (8_000, 800, 80, 15, 0)]
    assert sizes == [8_000 // SHARE, 800 // SHARE, 80 // SHARE, 0, 0]


def test_it_is_small_where_windows_are_short() -> None:
    assert spent(lease_of(window=1.0), 1_000, 100_000) == 500  # a twentieth of a second's demand


def test_little_demand_gets_no_slice() -> None:
    lease = lease_of()
    assert [spent(lease, 1, second * 1_000_000) for second in range(1, 4)] == [0, 0, 0]


def test_nothing_is_fetched_before_the_store_has_said_what_is_left() -> None:
    lease = lease_of()
    lease.remaining = None
    assert spent(lease, 1_000, 10_000) == 0


def test_one_fetch_at_a_time_and_a_pause_after_a_fault() -> None:
    lease = lease_of()
    lease.fetching = True
    assert spent(lease, 1_000, 10_000) == 0
    lease.note_failure(10_000)
    assert not lease.fetching
    assert lease.fetch_size(10_000 + PAUSE_US - 1) == 0
    assert lease.fetch_size(10_000 + PAUSE_US) > 0


def test_demand_that_falls_is_believed_by_and_by() -> None:
    lease = lease_of()
    spent(lease, 4_000, 100_000)
    sizes = [spent(lease, 200, 100_000 * (look + 2)) for look in range(6)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 700  # 500 in a quarter of a second is what it is


def test_slices_are_spent_oldest_first_and_together_if_need_be() -> None:
    lease = lease_of()
    lease.add(slice_of(lease, 3))
    lease.add(slice_of(lease, 5, sent=10))
    assert lease.held == 8
    assert [count for _, count in lease.take(4, 20)] == [3, 1]
    assert [count for _, count in lease.take(9, 20)] == [4]
    assert lease.held == 0
    assert lease.take(1, 20) == []


def test_what_is_put_back_can_be_spent_again_unless_its_slice_has_ended() -> None:
    lease = lease_of()
    lease.add(slice_of(lease, 3))
    taken = lease.take(2, 0)
    lease.put_back(taken)
    assert lease.held == 3
    taken = lease.take(2, 0)
    assert lease.take(1, LIFE_US) == []  # it has ended: one was left
    lease.put_back(taken)
    assert lease.held == 0
    charges, stranded = lease.take_leftovers(LIFE_US)
    assert (sorted(charge.check.cost for charge in charges), stranded) == ([1, 2], 0)


def test_what_has_ended_is_given_back_as_it_was_charged() -> None:
    lease = lease_of("sliding_window_counter")
    lease.add(slice_of(lease, 10, now=NOW + 7, reset=99))
    lease.take(4, 0)
    lease.tick(LIFE_US)
    assert lease.take_leftovers(LIFE_US) == ([Charge(lease.check._replace(cost=6), NOW + 7, 99)], 0)
    assert lease.take_leftovers(LIFE_US) == ([], 0)


@pytest.mark.parametrize(("algorithm", "back", "lost"), [("fixed_window", 0, 6), ("sliding_window_counter", 1, 0)])
def test_of_a_window_that_is_over_only_one_that_slides_has_use_for_the_rest(
    algorithm: str, back: int, lost: int
) -> None:
    lease = lease_of(algorithm)
    lease.add(slice_of(lease, 6, now=NOW + MINUTE - 1_000))
    lease.tick(1_000)
    charges, stranded = lease.take_leftovers(1_000)
    assert (len(charges), stranded) == (back, lost)


def test_a_lease_that_nobody_used_between_two_ticks_ends() -> None:
    lease = lease_of()
    lease.add(slice_of(lease, 10))
    lease.tick(100_000)
    assert lease.held == 10
    lease.take(1, 150_000)
    lease.tick(200_000)
    assert lease.held == 9
    lease.tick(300_000)
    assert lease.held == 0
    assert [charge.check.cost for charge in lease.take_leftovers(300_000)[0]] == [9]


def test_a_refusal_is_remembered_shortly_and_never_beyond_its_end() -> None:
    lease = lease_of()
    lease.take_answer(2, Outcome(30_000, 0, 40_000), NOW, 1_000)
    refusal = lease.refusal
    assert refusal is not None
    assert refusal.is_valid_for(2, 1_000)
    assert not refusal.is_valid_for(1, 1_000)
    assert refusal.is_valid_for(3, 30_999)
    assert not refusal.is_valid_for(3, 31_000)
    assert not refusal.is_valid_for(3, 999)  # the clock went back
    assert refusal.at(11_000) == Outcome(20_000, 0, 30_000)
    lease.take_answer(2, Outcome(MINUTE, 0, MINUTE), NOW, 1_000)
    assert lease.refusal is not None
    assert not lease.refusal.is_valid_for(2, 1_000 + REMEMBER_US)
    lease.take_answer(2, Outcome(NEVER, 5, 0), NOW, 1_000)
    assert lease.refusal is not None
    assert lease.refusal.at(2_000).wait_us == NEVER
    lease.take_answer(1, Outcome(0, 4, 0), NOW, 2_000)
    assert lease.refusal is None


@pytest.mark.parametrize(
    ("quota", "pace"),
    [
        (Quota(10_000, 10, algorithm="gcra"), 5_000),
        (Quota(10_000, 10, burst=8, algorithm="token_bucket"), 1_000),  # else it would be full before it is asked again
        (Quota(1_000, 0.2), 1_000),
        (Quota(1_000, 10), 5_000),
    ],
)
def test_a_refusal_stands_for_a_moment_at_least(quota: Quota, pace: int) -> None:
    lease = Lease(Check("r", "space", "alice", quota), 0)
    assert lease.take_answer(1, Outcome(10, 0, 20_000), NOW, 1_000).wait_us == pace
    assert lease.refusal is not None
    assert lease.refusal.is_valid_for(1, 1_000 + pace - 1)
    assert not lease.refusal.is_valid_for(1, 1_000 + pace)
    assert lease.take_answer(1, Outcome(7_000, 0, 20_000), NOW, 1_000).wait_us == 7_000


def test_figures_are_the_store_s_with_what_has_passed() -> None:
    lease = lease_of()
    piece = slice_of(lease, 10, sent=1_000, reset=60_000)
    lease.add(piece)
    lease.take(1, 2_000)
    assert lease.now_us(2_000) == NOW + 1_000
    assert lease.outcome(2_000) == Outcome(0, 509, 59_000)
    assert figures((509, 9, piece), NOW + 70_000, lease.quota) == (509, 0)


def test_requests_of_a_leaky_bucket_keep_their_turns() -> None:
    lease = lease_of("leaky_bucket", limit=1_000, window=1.0)
    lease.add(slice_of(lease, 3, reset=3_000))  # the bucket was empty: its turns are at 0, 1 and 2 ms
    resets = []
    for _ in range(3):
        lease.take(1, 0)
        resets.append(lease.outcome(0).reset_us)
    assert resets == [1_000, 2_000, 3_000]
