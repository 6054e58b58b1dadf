"""What the memory store remembers of a client: how much, and for how long."""

from __future__ import annotations

from headgate.core.check import MAX_VIOLATIONS, Block, Check, Client, Group, Penalty, Result, Terms
from headgate.core.key import key_template
from headgate.core.quota import Quota
from headgate.stores.memory import MemoryStore
from headgate.stores.memory.penalty import PenaltyRecord, figures
from headgate.testing import FakeClock

SECOND = 1_000_000
QUOTA = Quota(1, 60, algorithm="fixed_window")


def test_no_more_than_1000_violations_are_kept() -> None:
    terms = Terms(3_600 * SECOND, MAX_VIOLATIONS, (1, 2))
    record = PenaltyRecord(terms)
    blocks = [record.violate(now, terms, 60 * SECOND, "r") for now in range(1, MAX_VIOLATIONS + 51)]
    assert len(record.violations) == MAX_VIOLATIONS
    assert min(record.violations) == 51
    assert blocks[: MAX_VIOLATIONS - 1] == [None] * (MAX_VIOLATIONS - 1)
    # The oldest goes for each that comes, so that at this threshold nothing escalates.
    assert set(blocks[MAX_VIOLATIONS - 1 :]) == {Block(60 * SECOND, "r")}


def test_a_violation_counts_for_the_detection_window_and_not_a_microsecond_more() -> None:
    terms = Terms(10 * SECOND, 2, (1,))
    for apart, block in ((10 * SECOND - 1, Block(SECOND, "r")), (10 * SECOND, None)):
        record = PenaltyRecord(terms)
        assert record.violate(SECOND, terms, SECOND, "r") is None
        assert record.violate(SECOND + apart, terms, SECOND, "r") == block


def test_a_clock_that_goes_back_makes_no_block_longer_and_no_violation_last() -> None:
    terms = Terms(10 * SECOND, 2, (1,))
    record = PenaltyRecord(terms)
    record.violate(100 * SECOND, terms, SECOND, "r")
    assert record.violate(100 * SECOND, terms, SECOND, "r") == Block(SECOND, "r")
    assert record.block(50 * SECOND, peek=True) == Block(SECOND, "r")
    assert record.ends == 101 * SECOND  # a peek changes nothing
    assert record.block(50 * SECOND, peek=False) == Block(SECOND, "r")
    assert record.block(51 * SECOND - 1, peek=False) == Block(1, "r")
    assert record.block(51 * SECOND, peek=False) is None
    record.violate(51 * SECOND, terms, SECOND, "r")
    assert list(record.violations) == [51 * SECOND] * 3
    record.violate(61 * SECOND, terms, SECOND, "r")
    assert list(record.violations) == [61 * SECOND]


def test_figures_tell_a_bounded_store_what_it_may_forget() -> None:
    terms = Terms(10 * SECOND, 4, (1,))
    record = PenaltyRecord(terms)
    assert figures(None, 0, QUOTA) == (1_000, 0)
    assert figures(record, 0, QUOTA) == (1_000, 0)
    record.violate(0, terms, 60 * SECOND, "r")
    assert figures(record, SECOND, QUOTA) == (750, 9 * SECOND)
    assert figures(record, 10 * SECOND, QUOTA) == (1_000, 0)
    for _ in range(3):
        record.violate(0, terms, 60 * SECOND, "r")
    assert figures(record, SECOND, QUOTA) == (0, 59 * SECOND)
    assert figures(record, 60 * SECOND, QUOTA) == (1_000, 0)


def refuse(store: MemoryStore, name: str, *, cost: int = 2) -> Result:
    group = Group(
        (Check("r", key_template("user", "r", "fixed_window"), name, QUOTA, cost),),
        penalty=Penalty(Client("user", name), Terms(3_600 * SECOND, 2, (1,))),
    )
    (result,) = store.check([group])
    assert isinstance(result, Result)
    return result


def test_records_are_bounded_and_swept_and_a_blocked_client_is_not_forgotten() -> None:
    clock = FakeClock(1_700_000_000)
    store = MemoryStore(max_keys=100, clock=clock)
    refuse(store, "villain")
    assert refuse(store, "villain").block == Block(60 * SECOND, "r")
    for number in range(1_000):
        refuse(store, f"user-{number}")  # a cost above the limit: refused, and only the violation is kept
        assert len(store) <= 100
    assert refuse(store, "villain").outcomes == ()
    clock.advance(3_601)
    for number in range(200):
        refuse(store, f"other-{number}")
    assert len(store) <= 100


def test_a_full_store_still_refuses() -> None:
    clock = FakeClock(1_700_000_000)
    store = MemoryStore(max_keys=3, clock=clock)
    for name in "abc":
        refuse(store, name)
        assert refuse(store, name).block is not None
    for _ in range(5):
        result = refuse(store, "d")
        assert result.block is None
        assert result.outcomes[0].wait_us != 0


def test_clear_forgets_clients_too() -> None:
    store = MemoryStore(clock=FakeClock(1_700_000_000))
    refuse(store, "a")
    refuse(store, "a")
    store.clear()
    assert len(store) == 0
    assert refuse(store, "a").block is None
