"""Calls to the regions' stores, as yielded by the parts that do no I/O."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

HERE: Final = ""  # our own region


class StoreCall(NamedTuple):
    """A call to a region's store. The answer is its result, or its `StoreError`."""

    region: str
    method: str
    arguments: tuple[Any, ...]


# Yields calls that can be made at the same time, and receives their answers.
Steps = Generator[list[StoreCall], list[Any], T]


class Duty(Protocol):
    """Periodic work in the background."""

    name: str

    def due_us(self) -> int | None:
        """Return the time until the next `work`; None: there is nothing to do until `notify` is called."""
        ...

    def work(self) -> Steps[None]:
        """Yield the calls of one round of work."""
        ...
