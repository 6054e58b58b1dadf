"""The seven algorithms. Each has two implementations of the same name, called twins: a Python module and a Lua file.

A Python twin has three pure functions over an explicit state (None: the key is new) and a time in microseconds:

    admit(state, now, quota, cost) -> (wait, state)

        `wait` is 0 when `cost` fits, `NEVER` when it never can, else the exact time until it fits. Store the returned
        state: it is charged if the cost fitted. If not, it is equivalent to the given state, and is a different object
        only if the given state was outdated, or lay in the future because the clock went back.

    figures(state, now, quota) -> (remaining, reset)

        What still fits, and the time until the whole capacity is free: 0 when the state no longer matters.

    refund(state, now, quota, cost, charged_at, reset) -> state

        Undo a charge of `cost` made at `charged_at`, after which `figures` returned `reset`. The result never has more
        room than if the charge had not been made. Later charges stay counted.

`concurrency` has three more functions, `take`, `release` and `renew`, which take the id of a slot.

All arithmetic uses whole numbers and is exact: fractions of a token or of a microsecond are kept as remainders.
The Lua twins (see prelude.lua) have the same functions and return the same answers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, Protocol

from headgate.core.quota import Quota


class Algorithm(Protocol):
    """A Python twin."""

    def admit(self, state: Any, now: int, quota: Quota, cost: int) -> tuple[int, Any]: ...

    def figures(self, state: Any, now: int, quota: Quota) -> tuple[int, int]: ...

    def refund(self, state: Any, now: int, quota: Quota, cost: int, charged_at: int, reset: int) -> Any: ...


class _Twins(dict[str, Algorithm]):
    """The Python twins by name. Each is imported when it is first used."""

    def __missing__(self, name: str) -> Algorithm:
        twin: Any = import_module(f"{__name__}.{name}")
        self[name] = twin
        return self[name]


ALGORITHMS: Final = _Twins()


def lua(name: str) -> str:
    """Return the Lua source of one twin, or of the `prelude` that they share."""
    from importlib.resources import files  # noqa: PLC0415 - only Redis needs it, and it imports many modules

    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
