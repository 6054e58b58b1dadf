"""The circuit breaker by a clock that is told: how it gets from state to state, and its laws whatever happens."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headgate.stores.breaker import ANSWERS, FAILURES, PROBE_SECONDS, SLOW, SLOW_ANSWERS, Breaker, State

DEADLINE = 0.05
QUICK, LONG = DEADLINE / 10, DEADLINE


class World:
    """A breaker, the time, and what it told."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.states: list[State] = ["closed"]
        self.breaker = Breaker(DEADLINE, self._changed)

    def _changed(self, state: State, before: State) -> None:
        assert before == self.states[-1] != state
        self.states.append(state)

    def call(self, seconds: float, *, fails: bool) -> bool:
        """A call that takes so long, if it is admitted. Whether it was."""
        if not self.breaker.admits(self.now):
            return False
        self.now += seconds
        self.end(seconds, fails=fails)
        return True

    def end(self, seconds: float, *, fails: bool) -> None:
        if fails:
            self.breaker.failed(self.now, seconds)
        else:
            self.breaker.answered(self.now, seconds)

    @property
    def state(self) -> str:
        return self.breaker.state

    def opened(self) -> World:
        assert self.call(LONG, fails=True)
        assert self.state == "open"
        return self


def test_a_failure_that_was_waited_for_opens_it() -> None:
    assert World().opened().states == ["closed", "open"]


def test_quick_failures_open_it_when_they_come_in_a_row() -> None:
    world = World()
    for _ in range(FAILURES - 1):
        world.call(QUICK, fails=True)
    world.call(QUICK, fails=False)
    for _ in range(FAILURES - 1):
        world.call(QUICK, fails=True)
    assert world.state == "closed"
    world.call(QUICK, fails=True)
    assert world.state == "open"


def test_slow_answers_open_it_when_they_are_half_of_all() -> None:
    world = World()
    for _ in range(SLOW_ANSWERS - 1):
        world.call(SLOW * DEADLINE, fails=False)
        world.call(QUICK, fails=False)
    assert world.state == "closed"
    world.call(SLOW * DEADLINE, fails=False)
    assert world.state == "open"


def test_slow_answers_among_many_do_not() -> None:
    world = World()
    for number in range(20 * ANSWERS):
        world.call(LONG if number % 3 == 0 else QUICK, fails=False)
    assert world.states == ["closed"]


def test_it_probes_at_once_and_closes_when_that_is_answered() -> None:
    world = World().opened()
    assert world.call(QUICK, fails=False)
    assert world.states == ["closed", "open", "half_open", "closed"]


def test_one_call_at_a_time_is_the_probe() -> None:
    world = World().opened()
    assert world.breaker.admits(world.now)
    assert world.state == "half_open"
    assert not world.breaker.admits(world.now)
    world.now += PROBE_SECONDS  # nobody has heard of it since
    assert world.breaker.admits(world.now)


def test_a_probe_that_fails_or_is_slow_leaves_it_open_for_a_second() -> None:
    for fails in (True, False):
        world = World().opened()
        probed = world.now
        assert world.call(LONG, fails=fails)
        assert world.state == "open"
        world.now = probed + PROBE_SECONDS - 0.001
        assert not world.call(QUICK, fails=False)
        world.now = probed + PROBE_SECONDS
        assert world.call(QUICK, fails=False)
        assert world.state == "closed"


def test_an_answer_to_a_call_that_was_still_under_way_closes_it() -> None:
    world = World().opened()
    world.end(QUICK, fails=False)
    assert world.state == "closed"


def test_a_call_that_began_before_it_closed_and_fails_later_does_not_open_it_again() -> None:
    world = World().opened()
    began = world.now
    assert world.call(QUICK, fails=False)
    closed = world.now
    world.now = began + LONG
    assert not world.breaker.failed(world.now, LONG), "that is no news"
    assert world.state == "closed"
    world.now = closed + LONG
    assert world.breaker.failed(world.now, LONG)
    assert world.state == "open"


SECONDS = st.sampled_from([0.0, QUICK, SLOW * DEADLINE, LONG])
EVENTS = st.lists(
    st.tuples(st.sampled_from(["call", "admit", "end", "wait"]), SECONDS, st.booleans(), st.floats(0, 3)), max_size=200
)


@given(EVENTS)
def test_while_it_is_not_closed_it_lets_through_one_call_a_second_at_most(
    events: list[tuple[str, float, bool, float]],
) -> None:
    world = World()
    probes: list[float] = []
    for kind, seconds, fails, wait in events:
        before = world.state
        if kind == "wait":
            world.now += wait
        elif kind == "end":
            world.end(seconds, fails=fails)
        else:
            at = world.now
            admitted = world.call(seconds, fails=fails) if kind == "call" else world.breaker.admits(world.now)
            assert admitted or before != "closed"
            if before != "closed" and admitted:
                probes.append(at)
    assert all(later - earlier >= PROBE_SECONDS for earlier, later in pairwise(probes))


@given(EVENTS)
def test_it_heals_with_the_first_call_that_a_server_answers_in_time(
    events: list[tuple[str, float, bool, float]],
) -> None:
    world = World()
    for _, seconds, fails, wait in events:
        world.now += wait
        world.call(seconds, fails=fails)
    world.now += PROBE_SECONDS
    assert world.call(QUICK, fails=False)
    assert world.state == "closed"


@given(EVENTS)
def test_a_dead_server_costs_a_caller_one_wait_and_a_probe_a_second(
    events: list[tuple[str, float, bool, float]],
) -> None:
    world = World()
    waited, began = 0, world.now
    for _, _, _, wait in events:
        waited += world.call(LONG, fails=True)
        world.now += wait
    assert waited <= 2 + (world.now - began) / PROBE_SECONDS
