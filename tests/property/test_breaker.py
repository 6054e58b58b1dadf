"""The circuit breaker by a clock that is told: how it gets from state to state, and its laws whatever happens."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headgate.stores.breaker import FAILURES, GRACE_SECONDS, PROBE_SECONDS, Breaker, State

TIMEOUT = 0.2
MOMENT = 0.001


class World:
    """A breaker, the time, and what it told."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.states: list[State] = ["closed"]
        self.breaker = Breaker(self._changed)
        self.breaker.ask(self.now)

    def _changed(self, state: State, before: State) -> None:
        assert before == self.states[-1] != state
        self.states.append(state)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            self.breaker.fail(self.now, self.now, "refused")

    def listen(self, began: float) -> bool:
        """What a caller does whose time is up."""
        silent = self.breaker.is_silent(self.now, began, TIMEOUT)
        if silent:
            self.breaker.open(self.now, "silent")
        return silent

    @property
    def state(self) -> str:
        return self.breaker.state

    def opened(self) -> World:
        self.breaker.hear(self.now)
        began = self.now
        self.pass_time(TIMEOUT)
        assert self.listen(began)
        assert self.state == "open"
        return self


def test_silence_for_as_long_as_a_caller_waits_opens_it() -> None:
    assert World().opened().states == ["closed", "open"]


def test_a_reply_to_anybody_else_meanwhile_is_a_sign_of_life() -> None:
    world = World()
    began = world.now
    world.pass_time(TIMEOUT / 2)
    world.breaker.hear(world.now)
    world.pass_time(TIMEOUT / 2)
    assert not world.listen(began)
    assert world.states == ["closed"]


def test_what_has_just_left_says_nothing_of_a_server_that_nobody_asked_for_long() -> None:
    world = World()
    world.breaker.hear(world.now)
    world.pass_time(3_600)
    began = world.now
    world.pass_time(TIMEOUT / 2)
    assert not world.listen(began)


def test_failures_open_it_when_they_come_in_a_row() -> None:
    world = World()
    world.fail(FAILURES - 1)
    world.breaker.hear(world.now)
    world.fail(FAILURES - 1)
    assert world.state == "closed"
    world.fail()
    assert world.state == "open"


def test_a_probe_is_due_at_once_and_closes_it_when_it_is_answered() -> None:
    world = World().opened()
    assert world.breaker.begin_probe(world.now)
    world.breaker.close(world.now)
    assert world.states == ["closed", "open", "half_open", "closed"]


def test_one_probe_at_a_time_and_one_a_second() -> None:
    world = World().opened()
    began = world.now
    assert world.breaker.begin_probe(world.now)
    assert not world.breaker.begin_probe(world.now)
    world.pass_time(MOMENT)
    world.fail()
    assert world.state == "open"
    world.now = began + PROBE_SECONDS - MOMENT
    assert not world.breaker.begin_probe(world.now)
    world.now = began + PROBE_SECONDS
    assert world.breaker.begin_probe(world.now)


def test_a_late_reply_allows_a_probe_at_once() -> None:
    world = World().opened()
    assert world.breaker.begin_probe(world.now)
    world.fail()
    world.pass_time(MOMENT)
    assert not world.breaker.begin_probe(world.now)
    world.breaker.hear(world.now)
    assert world.state == "open"
    assert world.breaker.begin_probe(world.now)


def test_callers_wait_for_a_probe_within_a_second_of_the_last_sign_of_life() -> None:
    world = World()
    world.breaker.hear(world.now)
    heard = world.now
    world.pass_time(TIMEOUT)
    world.listen(heard)
    assert not world.breaker.may_wait(world.now), "there is no probe yet"
    assert world.breaker.begin_probe(world.now)
    assert world.breaker.may_wait(world.now)
    world.now = heard + GRACE_SECONDS - MOMENT
    assert world.breaker.may_wait(world.now)
    world.now = heard + GRACE_SECONDS
    assert not world.breaker.may_wait(world.now)


def test_a_server_that_was_never_heard_of_is_given_a_second_too() -> None:
    world = World()
    began = world.now
    world.pass_time(TIMEOUT)
    assert world.listen(began)
    assert world.breaker.begin_probe(world.now)
    assert world.breaker.may_wait(world.now)
    world.now = began + GRACE_SECONDS
    assert not world.breaker.may_wait(world.now)


def test_what_began_before_it_closed_and_fails_later_does_not_open_it_again() -> None:
    world = World().opened()
    began = world.now
    assert world.breaker.begin_probe(world.now)
    world.pass_time(MOMENT)
    world.breaker.close(world.now)
    for _ in range(FAILURES):
        assert not world.breaker.fail(world.now, began, "reset"), "that is no news"
    assert world.state == "closed"


EVENTS = st.lists(
    st.tuples(st.sampled_from(["hear", "fail", "silent", "probe", "answer", "wait"]), st.floats(0, 2)), max_size=200
)


def happen(world: World, event: str, seconds: float) -> bool:
    """Something happens. Return whether a probe began."""
    if event == "hear":
        world.breaker.hear(world.now)
    elif event == "fail":
        world.fail()
    elif event == "silent":
        world.listen(world.now - seconds)
    elif event == "probe":
        return world.breaker.begin_probe(world.now)
    elif event == "answer" and world.state == "half_open":
        world.breaker.close(world.now)
    else:
        world.pass_time(seconds)
    return False


@given(EVENTS)
def test_a_server_that_gives_no_sign_of_life_is_probed_once_a_second_at_most(events: list[tuple[str, float]]) -> None:
    world = World().opened()
    probes = []
    for event, seconds in events:
        at = world.now
        if event not in ("hear", "answer") and happen(world, event, seconds):
            probes.append(at)
    assert all(later - earlier >= PROBE_SECONDS for earlier, later in pairwise(probes))


@given(EVENTS)
def test_it_heals_with_the_first_probe_that_is_answered(events: list[tuple[str, float]]) -> None:
    world = World()
    for event, seconds in events:
        happen(world, event, seconds)
    world.pass_time(PROBE_SECONDS)
    if world.state != "closed":
        assert world.state == "half_open" or world.breaker.begin_probe(world.now)
        world.breaker.close(world.now)
    assert world.state == "closed"
    assert not world.breaker.begin_probe(world.now)


@given(EVENTS)
def test_nobody_waits_later_than_a_second_after_the_last_sign_of_life(events: list[tuple[str, float]]) -> None:
    world = World()
    heard = world.now
    for event, seconds in events:
        before = world.state
        happen(world, event, seconds)
        if event == "hear" or (event == "answer" and before == "half_open"):
            heard = world.now
        if world.breaker.may_wait(world.now):
            assert world.now < heard + GRACE_SECONDS
