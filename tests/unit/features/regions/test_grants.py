"""Grants on a page: what is given, to whom, and that it is never too much."""

from __future__ import annotations

from headgate.features.regions.division import floors
from headgate.features.regions.grants import Grant, GrantTerms, RegionReport, Sheet, fresh_share, renew_share

WEIGHTS = {"eu": 1, "us": 1, "ap": 1}
TERM = 3_000_000
HOUR = 3_600_000_000
TERMS = GrantTerms(100, HOUR, floors(100, WEIGHTS, 0.05), WEIGHTS, TERM)
NOW = 10 * HOUR


def grant(
    sheet: Sheet,
    name: str,
    now: int,
    *,
    used: int = 0,
    asked: int = 0,
    as_of: int = 0,
    window: int = 10,
    crosses: int = 0,
) -> Grant:
    """A region renews its share; the sheet is changed in place, as a page in a store is."""
    after, given = renew_share(sheet, name, RegionReport(used, window, window + crosses, as_of, asked), now, TERMS)
    sheet.entries.clear()
    sheet.entries.update(after.entries)
    return given


def test_whoever_comes_first_gets_what_it_wants_and_leaves_floors() -> None:
    assert grant(Sheet.of(None), "eu", NOW, asked=200) == Grant(96, NOW + TERM, settled=False)


def test_a_part_of_what_nobody_wants_is_left_for_whoever_comes_next() -> None:
    sheet = Sheet.of(None)
    assert grant(sheet, "eu", NOW, asked=5).share == 10 + (100 - 14) // 2
    assert grant(sheet, "us", NOW, asked=5).share == 10 + (100 - 22) // 3


def test_what_was_used_is_not_given_to_others() -> None:
    sheet = Sheet.of(None)
    assert grant(sheet, "eu", NOW, asked=200).share == 96
    assert grant(sheet, "us", NOW + 1, asked=200).share == 2  # others hold all but its floor
    # It is asked to leave some of it; until its share has ended, it may still use it, and so may others of its nodes.
    later = NOW + 1_000_000
    assert grant(sheet, "eu", later, used=60, asked=200, as_of=later).share == 60
    assert grant(sheet, "us", later + 1, asked=200).share == 2
    # It has ended, and the region says what was used in the end.
    over = NOW + TERM
    assert grant(sheet, "eu", over, used=75, asked=200, as_of=over - 1).share == 75
    assert grant(sheet, "us", over + 1, asked=200).share == 2  # that was read too early
    assert grant(sheet, "eu", over + 2, used=80, asked=200, as_of=over + 2).share == 80
    assert grant(sheet, "us", over + 3, asked=200).share == 18


def test_a_region_that_is_cut_off_holds_what_it_may_have_used_until_the_window_is_over() -> None:
    sheet = Sheet.of(None)
    assert grant(sheet, "eu", NOW, asked=200).share == 96
    long_after = NOW + HOUR // 2
    assert grant(sheet, "us", long_after, asked=200, as_of=long_after).share == 2
    assert grant(sheet, "us", NOW + HOUR, asked=200, as_of=NOW + HOUR, window=11).share == 96


def test_a_region_whose_clock_is_ahead_still_holds_what_it_used_in_the_window_of_others() -> None:
    sheet = Sheet.of(None)
    assert grant(sheet, "eu", NOW, asked=200).share == 96
    after = NOW + 10 * TERM
    assert grant(sheet, "eu", after, used=0, as_of=after, window=11).share == 2
    assert grant(sheet, "us", after, asked=200, window=10).share == 2
    assert grant(sheet, "us", after, asked=200, window=11, as_of=after).share == 96


def test_a_share_that_may_outlast_its_window_counts_in_the_next_one_too() -> None:
    sheet = Sheet.of(None)
    assert grant(sheet, "eu", NOW, asked=200, crosses=1).share == 96
    assert grant(sheet, "us", NOW + 1, asked=200, window=11).share == 2
    over = NOW + 10 * TERM
    assert grant(sheet, "us", over, asked=200, window=11).share == 2  # it has ended; but when, nobody knows
    assert grant(sheet, "us", over, asked=200, window=12).share == 96
    # It says what it has used there.
    assert grant(sheet, "eu", over, used=5, as_of=over, window=11).share == 5
    assert grant(sheet, "ap", over, asked=200, window=11).share == 48


def test_a_share_that_may_reach_into_the_next_window_leaves_what_others_hold_there() -> None:
    sheet = Sheet.of(None)
    assert grant(sheet, "eu", NOW, asked=200, window=11).share == 96
    assert grant(sheet, "us", NOW, asked=200, window=10, crosses=1).share == 2
    assert grant(sheet, "us", NOW, asked=200, window=10).share == 96 - 94


def test_demand_fades_and_the_share_is_given_back() -> None:
    sheet = Sheet.of(None)
    grant(sheet, "eu", NOW, asked=8)
    now, given = NOW, None
    for _ in range(12):
        now += 1_000_000
        given = grant(sheet, "eu", now, used=8, as_of=now)
    assert given == Grant(8, now + TERM, settled=True)
    assert grant(sheet, "us", now, asked=200).share == 90


def test_a_node_without_demand_does_not_take_away_the_share_of_its_region() -> None:
    sheet = Sheet.of(None)
    busy = grant(sheet, "eu", NOW, asked=200).share
    assert grant(sheet, "eu", NOW + 1_000, asked=0).share == busy


def test_a_share_that_another_node_was_given_just_now_will_do_unless_there_is_more_demand() -> None:
    sheet = Sheet.of(None)
    given = grant(sheet, "eu", NOW, asked=20)
    assert fresh_share(sheet, "eu", RegionReport(0, 10, 10, 0, 20), NOW + TERM // 10, TERMS) == given
    assert fresh_share(sheet, "eu", RegionReport(0, 10, 10, 0, 21), NOW + TERM // 10, TERMS) is None
    assert fresh_share(sheet, "eu", RegionReport(0, 10, 10, 0, 20), NOW + TERM // 5, TERMS) is None
    assert fresh_share(sheet, "us", RegionReport(0, 10, 10, 0, 1), NOW + 1, TERMS) is None


def test_every_page_has_a_fence_of_its_own() -> None:
    sheet = Sheet.of(None)
    for fence in range(1, 4):
        sheet, _ = renew_share(sheet, "eu", RegionReport(0, 10, 10, 0, 1), NOW, TERMS)
        assert Sheet.of(sheet.text()) == sheet
        assert sheet.fence == fence
