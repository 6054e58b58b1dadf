"""Work that may wait, written once: a generator that yields what it waits for, and a sync and an async runner."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Suspension(Protocol):
    """Something to wait for."""

    def run(self) -> Any: ...

    async def run_async(self) -> Any: ...


Steps = Generator[Suspension, Any, T]


def run(steps: Steps[T]) -> T:
    """Run the steps, and wait in this thread."""
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        answer = step.run()


async def run_async(steps: Steps[T]) -> T:
    """Run the steps without blocking the event loop."""
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        answer = await step.run_async()


class Settled:
    """Waits for another caller's work to end, for at most `timeout` seconds."""

    def __init__(self, work: Future[None], timeout: float) -> None:
        self._work = work
        self._timeout = timeout

    def run(self) -> None:
        wait((self._work,), self._timeout)

    async def run_async(self) -> None:
        waiting = asyncio.wrap_future(self._work)
        try:
            await asyncio.wait((waiting,), timeout=self._timeout)
        finally:
            waiting.cancel()  # only the wait: the work continues


class OperatorCall:
    """Calls the operator's function `api_keys`, sync or async. The result is its return value or its exception."""

    def __init__(self, function: Callable[[str], Any], argument: str) -> None:
        self._function = function
        self._argument = argument

    def run(self) -> Any:
        try:
            result = self._function(self._argument)
        except Exception as error:  # noqa: BLE001 - any error of the user's function is reported to the caller
            return error
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError("api_keys: an async function needs facts_async, or an async middleware")
        return result

    async def run_async(self) -> Any:
        try:
            result = self._function(self._argument)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:  # noqa: BLE001
            return error
