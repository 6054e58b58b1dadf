"""Turns: who works when, by a clock that stands still until somebody works."""

from __future__ import annotations

from collections.abc import Callable

from headgate.service.http2.scheduler import NOTICED, ROUND, TURN, Scheduler


class Loop:
    """An event loop's clock and its queue."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []

    def run(self) -> None:
        """One pass."""
        soon = self.soon.copy()
        self.soon.clear()
        for call in soon:
            call()


class Worker:
    """Works for as long as it has work, in steps."""

    def __init__(self, loop: Loop, name: str, seconds: float, log: list[str], *, known: bool = False) -> None:
        self.known = known
        self.seconds = seconds
        self._loop = loop
        self._name = name
        self._log = log

    def work(self, until: float) -> bool:
        self._log.append(self._name)
        step = min(self.seconds, until - self._loop.now)
        self.seconds -= step
        self._loop.now += step
        return self.seconds > 1e-9


def scheduler_of(loop: Loop) -> Scheduler:
    return Scheduler(loop.soon.append, lambda: loop.now)


def test_little_work_is_done_at_once() -> None:
    loop, log = Loop(), list[str]()
    scheduler_of(loop).work(Worker(loop, "a", NOTICED / 2, log))
    assert (log, loop.soon) == (["a"], [])


def test_much_work_is_done_in_turns_and_others_get_theirs() -> None:
    loop, log = Loop(), list[str]()
    scheduler = scheduler_of(loop)
    scheduler.work(Worker(loop, "busy", 10 * ROUND, log))
    assert log == ["busy"]
    passes = 0
    while loop.soon:
        scheduler.work(Worker(loop, "light", 1e-5, log))
        before = loop.now
        loop.run()
        passes += 1
        assert loop.now - before <= ROUND + TURN
    assert log.count("light") == passes
    assert log.count("busy") > 30


def test_none_waits_for_all_who_came_before() -> None:
    """A hundred strangers, each with a turn's work; then a client who is known, and another stranger."""
    loop, log = Loop(), list[str]()
    scheduler = scheduler_of(loop)
    for _ in range(100):
        scheduler.work(Worker(loop, "stranger", TURN, log))
    assert loop.now <= ROUND + TURN  # a round is over, and the others wait
    scheduler.work(Worker(loop, "known", 1e-5, log, known=True))
    began = loop.now
    while "known" not in log:
        loop.run()
    assert loop.now - began <= ROUND + TURN
    while loop.soon:
        loop.run()
    assert log.count("stranger") == 100


def test_a_new_round_begins_when_the_loop_has_looked_at_other_events() -> None:
    loop, log = Loop(), list[str]()
    scheduler = scheduler_of(loop)
    for _ in range(100):
        scheduler.work(Worker(loop, "a", TURN, log))
        loop.run()
    assert len(log) == 100


def test_little_work_needs_no_round() -> None:
    """Until it adds up."""
    loop, log = Loop(), list[str]()
    scheduler = scheduler_of(loop)
    for _ in range(9):
        scheduler.work(Worker(loop, "a", NOTICED / 10, log))
    assert loop.soon == []
    for _ in range(9):
        scheduler.work(Worker(loop, "a", NOTICED / 10, log))
    assert len(loop.soon) == 1


def test_whoever_is_gone_gets_no_turn() -> None:
    loop, log = Loop(), list[str]()
    scheduler = scheduler_of(loop)
    gone = Worker(loop, "gone", 5 * TURN, log)
    scheduler.work(gone)
    scheduler.forget(gone)
    loop.run()
    assert (log, loop.soon) == (["gone"], [])
    scheduler.work(Worker(loop, "next", 1e-5, log))
    assert log == ["gone", "next"]
