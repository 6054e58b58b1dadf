"""Steps: a generator that yields groups for a store, and is sent its answers or thrown its error. The I/O of that."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from headgate.core.check import Answer, Group

Steps = Generator[list[Group], Sequence[Answer], Any]


def run(steps: Steps, check: Callable[[Sequence[Group]], Sequence[Answer]]) -> Any:
    """Take steps, asking the store in between, and return what comes of them."""
    try:
        groups = next(steps)
        while True:
            try:
                answers = check(groups)
            except BaseException as error:  # noqa: BLE001 - it is for the steps to handle
                groups = steps.throw(error)
            else:
                groups = steps.send(answers)
    except StopIteration as stop:
        return stop.value


async def run_async(steps: Steps, check: Callable[[Sequence[Group]], Any]) -> Any:
    """The same, awaited."""
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
        return stop.value
