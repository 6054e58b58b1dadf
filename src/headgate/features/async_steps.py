"""Runs steps: a generator that yields groups for a store, and is sent its answers or thrown its error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TypeVar

from headgate.core.check import Answer, Group

T = TypeVar("T")
Steps = Generator[list[Group], Sequence[Answer], T]


async def run_async(steps: Steps[T], check: Callable[[Sequence[Group]], Awaitable[Sequence[Answer]]]) -> T:
    """Take steps, asking the store in between, and return what comes of them."""
    try:
        groups = next(steps)
        while True:
            try:
                answers = await check(groups)
            except BaseException as error:  # noqa: BLE001 - it is for the steps to handle
                groups = steps.throw(error)
            else:
                groups = steps.send(answers)
    except StopIteration as stop:
        result: T = stop.value
        return result
