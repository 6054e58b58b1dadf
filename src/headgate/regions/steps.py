"""What the parts that do no I/O ask for: calls to the regions' stores."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

HERE: Final = ""  # our own region


class Ask(NamedTuple):
    """A call to a region's store. The answer is what it returns, or its `StoreError`."""

    region: str
    method: str
    arguments: tuple[Any, ...]


# Yields calls that can be made at the same time, and is sent their answers.
Steps = Generator[list[Ask], list[Any], T]


class Duty(Protocol):
    """Something that is done in the background, again and again."""

    name: str

    def due_us(self) -> int | None:
        """How long until it is to be done; None: there is nothing to do, until `notify` says so."""
        ...

    def work(self) -> Steps[None]:
        """Do it."""
        ...
