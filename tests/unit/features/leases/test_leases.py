"""What leases tell of themselves when the store fails."""

from __future__ import annotations

import pytest

from headgate.core.check import IDEMPOTENCY_US, Answer, Charge, Check, Group, Outcome, Result
from headgate.core.quota import Quota
from headgate.errors import StoreError, StoreTimeout, StoreUnavailable
from headgate.features.leases.leases import Leases

NOW = 1_700_000_000_000_000
CHECK = Check("r", "user:{*}:r:gcra", "alice", Quota(1_000_000, 60, algorithm="gcra"))
LOST, NEVER_SENT = StoreTimeout("no answer"), StoreUnavailable("left alone", sent=False)


def decide(leases: Leases, error: StoreError | None = None) -> int:
    """Check once; the store's answer is this error, or yes. Returns the size of the slice that it was asked for."""
    steps = leases.decide([Group((CHECK,))], frozenset({"r"}), inline=True)
    groups: list[Group] = next(steps, [])  # none: it is held
    answers: list[Answer] = [Result(NOW, (Outcome(0, 500_000, 0),)) for _ in groups]
    if groups:
        with pytest.raises(StopIteration):
            steps.send(answers) if error is None else steps.throw(error)
    return sum(group.checks[0].cost for group in groups[1:])


def slice_wanted(leases: Leases, error: StoreError | None = None) -> int:
    """Check until a slice is asked for; returns its size."""
    return next(size for size in (decide(leases, error) for _ in range(10_000)) if size)


@pytest.mark.parametrize(("error", "may_be_lost"), [(LOST, True), (NEVER_SENT, False), (None, False)])
def test_a_slice_that_may_have_been_charged_for_nobody_is_asked_for_again(
    error: StoreError | None, may_be_lost: bool
) -> None:
    leases = Leases()
    slice_wanted(leases)  # and had: from now on, it knows how much there is
    size = slice_wanted(leases, error)
    assert leases.status().unanswered == (size if may_be_lost else 0)
    leases.end()
    assert (leases.status().unanswered, leases.status().stranded) == (0, size if may_be_lost else 0)


def test_a_lost_slice_is_given_up_before_the_store_forgets_its_key() -> None:
    now_us = NOW
    leases = Leases(lambda: now_us)

    def wanted(error: StoreError | None = None) -> int:
        nonlocal now_us
        size = 0
        while not size:
            now_us += 3_000
            size = decide(leases, error)
        return size

    wanted()
    size = wanted(LOST)
    keys = set()
    while leases.status().unanswered:
        now_us += 100_000
        leases.tend()
        steps = leases.fetch()
        for group in next(steps, []):
            assert group.idempotency is not None
            keys.add(group.idempotency.key)
            with pytest.raises(StopIteration):
                steps.throw(LOST)
    assert len(keys) == 1
    assert leases.status().stranded == size
    assert now_us - NOW < IDEMPOTENCY_US / 2


@pytest.mark.parametrize(("error", "calls"), [(LOST, 1), (NEVER_SENT, 0), (None, 1)])
def test_a_call_that_was_never_made_is_not_counted(error: StoreError | None, calls: int) -> None:
    leases = Leases()
    decide(leases, error)
    assert leases.status().calls == calls
    leases.note_return([Charge(CHECK, NOW, 0)], error)
    assert leases.status().calls == 2 * calls


@pytest.mark.parametrize("last", [None, LOST, NEVER_SENT])
def test_a_lost_slice_is_held_once_even_if_the_store_is_slow(last: StoreError | None) -> None:
    """The next look comes before the answer to the call of the last one."""
    now_us = NOW
    leases = Leases(lambda: now_us)

    def wanted(error: StoreError | None = None) -> int:
        nonlocal now_us
        size = 0
        while not size:
            now_us += 3_000
            size = decide(leases, error)
        return size

    wanted()
    size = wanted(LOST)
    now_us += 900_000  # all other slices are over
    leases.tend()
    before = leases.status().fetched
    calls = []
    for _ in range(2):
        now_us += 300_000
        leases.tend()
        steps = leases.fetch()
        if next(steps, None) is not None:
            calls.append(steps)
    for steps, error in zip(calls, (None, last), strict=False):
        answer: Answer = Result(NOW, (Outcome(0, 500_000, 0),))
        with pytest.raises(StopIteration):
            steps.send([answer]) if error is None else steps.throw(error)
    assert leases.status().fetched == before + size
    assert leases.status().unanswered == 0


def test_a_lost_slice_that_was_given_up_is_not_held_when_its_answer_comes() -> None:
    now_us = NOW
    leases = Leases(lambda: now_us)
    while not decide(leases):
        now_us += 3_000
    size = 0
    while not size:
        now_us += 3_000
        size = decide(leases, LOST)
    now_us += 300_000
    leases.tend()
    steps = leases.fetch()
    assert len(next(steps)) == 1
    now_us += IDEMPOTENCY_US
    leases.tend()
    assert leases.status().stranded >= size
    before = leases.status()
    with pytest.raises(StopIteration):
        steps.send([Result(NOW, (Outcome(0, 500_000, 0),))])
    assert leases.status().outstanding == 0
    assert (leases.status().fetched, leases.status().stranded) == (before.fetched, before.stranded)
