from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest

from headgate.stores.process_clock import SLACK_SECONDS, TICK_SECONDS
from headgate.stores.redis.batcher import ENOUGH, GATHER_SECONDS, MANY, Batcher

TIMEOUT = 0.05
MOMENT = GATHER_SECONDS / 10


class Loop:
    """An event loop whose time passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ready: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None], **_: Any) -> None:
        self.ready.append(callback)

    def call_at(self, when: float, callback: Callable[..., None], *arguments: Any, **_: Any) -> object:
        self.timers.append((when, partial(callback, *arguments)))
        return object()

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer not in due]
        callbacks, self.ready = self.ready + [callback for _, callback in due], []
        for callback in callbacks:
            callback()


@dataclass(eq=False)
class Call:
    size: int
    expected: float


@dataclass(eq=False)
class Node:
    batcher: Batcher
    waiting: list[str] = field(default_factory=list)
    calls: set[Call] = field(default_factory=set)
    held_since: float = 0.0
    left: list[int] = field(default_factory=list)  # how many, each time
    ticks: list[float] = field(default_factory=list)  # by the process clock

    def joins(self, count: int, now: float) -> None:
        if not self.batcher.woken:
            self.batcher.wake(now)
        self.waiting += ["somebody"] * count
        self.batcher.waited_for[self] = None

    def send_waiting(self) -> None:
        self.left.append(len(self.waiting))
        self.waiting.clear()
        self.held_since = 0.0
        self.batcher.waited_for.pop(self, None)

    def tick(self, now: float) -> bool:
        self.ticks.append(now)
        return len(self.ticks) < 3

    def sends(self, size: int, expected: float) -> Call:
        call = Call(size, expected)
        self.calls.add(call)
        self.batcher.calls.add(call)
        return call

    def is_answered(self, call: Call, now: float) -> None:
        self.calls.discard(call)
        self.batcher.calls.discard(call)
        self.batcher.wake(now)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def batcher(loop: Loop, *, gathers: bool) -> Batcher:
    made = Batcher(TIMEOUT, gathers=gathers)
    made.enter(cast("asyncio.AbstractEventLoop", loop))
    return made


@pytest.fixture
def nodes(loop: Loop) -> list[Node]:
    of_all = batcher(loop, gathers=True)
    return [Node(of_all), Node(of_all), Node(of_all)]


def test_all_who_come_in_a_tick_leave_at_its_end_with_the_same_deadline(loop: Loop, nodes: list[Node]) -> None:
    for node in nodes:
        node.joins(1, loop.now)
        loop.now += MOMENT
        node.joins(1, loop.now)
    assert nodes[0].batcher.deadline == 100.0 + TIMEOUT
    assert len(loop.ready) == 1
    loop.tick()
    assert [node.left for node in nodes] == [[2], [2], [2]]


def test_who_was_answered_in_the_same_tick_goes_along(loop: Loop) -> None:
    node = Node(batcher(loop, gathers=False))
    node.is_answered(node.sends(1, loop.now), loop.now)
    loop.ready.append(lambda: node.joins(1, loop.now))  # whom the next reply wakes
    node.is_answered(node.sends(1, loop.now), loop.now)
    node.joins(1, loop.now)
    loop.tick()
    assert node.left == [2]


def test_on_one_server_nobody_waits_for_a_call(loop: Loop) -> None:
    node = Node(batcher(loop, gathers=False))
    node.sends(MANY, loop.now + 1)
    node.joins(1, loop.now)
    loop.tick()
    assert node.left == [1]


def test_a_few_wait_for_others_who_are_under_way(loop: Loop, nodes: list[Node]) -> None:
    first, second, _ = nodes
    call = second.sends(MANY, loop.now + 1)
    first.joins(1, loop.now)
    loop.tick()
    assert first.left == []
    second.is_answered(call, loop.now)
    first.joins(3, loop.now)
    loop.tick(MOMENT)
    assert first.left == [4]


def test_for_so_long_and_no_longer(loop: Loop, nodes: list[Node]) -> None:
    first, second, third = nodes
    second.sends(MANY, loop.now + 1)
    first.joins(1, loop.now)
    loop.tick()
    third.joins(1, loop.now)
    loop.tick(GATHER_SECONDS / 2)
    assert first.left == third.left == []
    loop.tick(GATHER_SECONDS / 2)
    assert (first.left, third.left) == ([1], [])
    loop.tick(GATHER_SECONDS / 2)
    assert third.left == [1]


def test_many_do_not_wait(loop: Loop, nodes: list[Node]) -> None:
    first, second, _ = nodes
    second.sends(MANY, loop.now + 1)
    first.joins(ENOUGH, loop.now)
    loop.tick()
    assert first.left == [ENOUGH]


def test_nobody_waits_for_a_few_of_another_server(loop: Loop, nodes: list[Node]) -> None:
    first, second, _ = nodes
    second.sends(MANY - 1, loop.now + 1)
    first.joins(1, loop.now)
    loop.tick()
    assert first.left == [1]


def test_nobody_waits_for_another_server_that_has_become_slow(loop: Loop, nodes: list[Node]) -> None:
    first, second, _ = nodes
    second.sends(MANY, loop.now + MOMENT)
    loop.now += MOMENT
    first.joins(1, loop.now)
    loop.tick()
    assert first.left == [1]


def test_a_few_wait_for_their_own_server_however_few_are_under_way(loop: Loop, nodes: list[Node]) -> None:
    first = nodes[0]
    call = first.sends(1, loop.now)
    first.joins(1, loop.now)
    loop.tick()
    assert first.left == []
    first.is_answered(call, loop.now)
    loop.tick(MOMENT)
    assert first.left == [1]


def test_it_ticks_while_a_server_has_something_to_look_after(loop: Loop) -> None:
    node = Node(batcher(loop, gathers=False))
    node.batcher.watch(node)
    for _ in range(10):
        loop.tick(TICK_SECONDS)
    assert node.ticks == pytest.approx([100 + TICK_SECONDS * number for number in (1, 2, 3)])
    assert not loop.timers
    assert not node.batcher.watched


def test_time_in_which_the_event_loop_did_not_run_does_not_count(loop: Loop) -> None:
    node = Node(batcher(loop, gathers=False))
    node.batcher.watch(node)
    node.joins(1, loop.now)
    deadline = node.batcher.deadline
    loop.tick(60)
    late = TICK_SECONDS + SLACK_SECONDS
    assert node.ticks == pytest.approx([100 + late])
    assert node.batcher.now() == pytest.approx(100 + late)
    node.batcher.wake(loop.now)
    assert node.batcher.deadline == pytest.approx(deadline + late)
