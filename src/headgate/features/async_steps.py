"""Runs steps: a generator that yields groups for a store, and receives its answers or its error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TypeVar

from headgate.core.check import Answer, Group

T = TypeVar("T")
Steps = Generator[list[Group], Sequence[Answer], T]


async def run_async(steps: Steps[T], check: Callable[[Sequence[Group]], Awaitable[Sequence[Answer]]]) -> T:
    """Take steps, calling the store in between, and return their result."""
    try:
        groups = next(steps)
        while True:
            try:
                answers = await check(groups)
            except BaseException as error:  # noqa: BLE001 - the steps handle it
                groups = steps.throw(error)
            else:
                groups = steps.send(answers)
    except StopIteration as stop:
        result: T = stop.value
        return result
