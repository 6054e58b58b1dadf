"""How a quota is divided, and where a request is charged."""

from __future__ import annotations

import pytest

from headgate import Quota
from headgate.core.check import NEVER, Check, Outcome, OutcomeOf
from headgate.core.key import key, key_template, shard_key_template
from headgate.core.share import is_whole, parts_of
from headgate.features.shards.search import ShardSearch, checks_of, evenly
from headgate.stores.redis.topology import slot_of_check, slot_of_key

SPACE = key_template("user", "r", "fixed_window")
EMPTY = Outcome(50, 0, 90)


def check(cost: int = 1, *, limit: int = 10, enforced: bool = True) -> Check:
    return Check("r", SPACE, "alice", Quota(limit, 60, algorithm="fixed_window"), cost, enforced)


def left(remaining: int) -> Outcome:
    return Outcome(0, remaining, 90)


def test_the_parts_of_a_window_add_up_to_it() -> None:
    assert [part.limit for part in parts_of(Quota(10, 60), 4)] == [3, 3, 2, 2]
    assert {part.window_us for part in parts_of(Quota(10, 60), 4)} == {60_000_000}


def test_the_parts_of_a_bucket_fill_slower_and_hold_less() -> None:
    parts = parts_of(Quota(100, 60, burst=10, algorithm="gcra"), 4)
    assert [(part.limit, part.window_us, part.burst) for part in parts] == [
        (100, 240_000_000, burst) for burst in (3, 3, 2, 2)
    ]


def test_an_override_may_be_too_small_for_all_shards() -> None:
    assert [part.limit for part in parts_of(Quota(2, 60), 4)] == [1, 1]
    assert not is_whole(Quota(2, 60), 4)
    small = parts_of(Quota(100, 60, burst=2, algorithm="token_bucket"), 4)
    assert [(part.limit, part.window_us, part.burst) for part in small] == [(100, 120_000_000, 1)] * 2


def test_keys_of_shards_are_nobody_elses_and_in_slots_of_their_own() -> None:
    key_templates = [one.key_template for one in checks_of(check(), 4)]
    assert [key(one, "alice") for one in key_templates] == [
        f"user:{{alice{mark}}}:r:fixed_window" for mark in ("", "#1", "#2", "#3")
    ]
    assert key(SPACE, "alice#1") == "user:{alice%231}:r:fixed_window"
    hashed = key(shard_key_template(SPACE, 1), "x" * 200)
    assert hashed.startswith("user:{#")
    assert "#1}" in hashed
    slots = [slot_of_check(one) for one in checks_of(check(), 4)]
    assert slots == [slot_of_key(one.key) for one in checks_of(check(), 4)]
    assert len(set(slots)) == 4


@pytest.mark.parametrize("cost", range(11))
def test_a_cost_is_divided_so_that_every_part_can_hold_its_own(cost: int) -> None:
    parts = checks_of(check(), 4)
    layout = dict(evenly(parts, cost))
    assert sum(layout.values()) == cost
    assert all(some <= parts[place].quota.capacity for place, some in layout.items())


def test_a_check_goes_on_to_the_next_until_one_has_room() -> None:
    search = ShardSearch(check(), 4, 2)
    tried = []
    for outcome in (EMPTY, EMPTY, left(1)):
        tried += search.layout
        search.record_answers([outcome], 7)
        if not search.fits:
            assert search.advance()
    assert tried == [(2, 1), (3, 1), (0, 1)]
    whole = search.outcome(charged=True)
    assert isinstance(whole, OutcomeOf)
    # Of the one that was not asked, as much is taken to be left as of the one that was charged: a third.
    assert whole == Outcome(0, 1 + 1, 90)
    assert [(charge.check.key_template, charge.check.cost, charge.at_us) for charge in whole.charges] == [(SPACE, 1, 7)]


def test_it_is_refused_when_all_are_empty_until_the_first_is_not() -> None:
    search = ShardSearch(check(), 3, 0)
    for wait in (50, 40, 60):
        search.record_answers([Outcome(wait, 0, 90)], 7)
        more = search.advance()
    assert not more
    assert search.outcome(charged=False) == Outcome(40, 0, 90)


def test_a_larger_cost_is_charged_to_several_where_there_is_room() -> None:
    search = ShardSearch(check(3), 4, 0)
    search.record_answers([Outcome(50, 1, 90)], 7)
    assert search.advance()
    assert sorted(search.layout) == [(0, 0), (1, 1), (2, 1), (3, 1)]
    assert [one.enforced for one in search.checks] == [True, True, True, False]
    search.record_answers([left(3), EMPTY, left(1), left(1)], 7)
    assert search.advance()
    assert dict(search.layout) == {1: 3}  # where most is left


def test_what_never_fits_is_told_at_once_with_all_that_is_left() -> None:
    search = ShardSearch(check(11), 4, 1)
    assert search.layout == [(1, 11), (0, 0), (2, 0), (3, 0)]
    search.record_answers([Outcome(NEVER, 3, 0), left(3), left(2), left(0)], 7)
    assert not search.fits
    assert not search.advance()
    assert search.outcome(charged=False) == Outcome(NEVER, 8, 90)


def test_to_look_is_to_ask_all_and_charge_nothing() -> None:
    search = ShardSearch(check(4), 4, 1, look=True)
    assert [place for place, _ in search.layout] == [0, 1, 2, 3]
    search.record_answers([EMPTY, left(2), left(2), EMPTY], 7)
    assert search.fits
    assert search.outcome(charged=False) == Outcome(0, 4, 90)


def test_one_that_cannot_be_asked_is_passed_over() -> None:
    search = ShardSearch(check(), 2, 0)
    assert search.skip_part()
    assert search.layout == [(1, 1)]
    search.record_answers([EMPTY], 7)
    assert not search.advance()


def test_a_surcharge_goes_where_there_is_room_and_the_rest_evenly() -> None:
    search = ShardSearch(check(0), 4, 0)
    search.record_answers([left(0), left(2), left(1), left(0)], 7)
    found = {one.key_template: one.cost for one in search.surcharges(7)}
    assert sum(found.values()) == 7
    assert found[shard_key_template(SPACE, 1)] >= 2
    assert found[shard_key_template(SPACE, 2)] >= 1
    assert all(cost for cost in found.values())
