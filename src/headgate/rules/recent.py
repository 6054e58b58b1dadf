"""A bounded memory of what was used lately."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps between `size` and twice `size` of the values last used, in two generations.

    New values enter the young generation. When that is full it becomes the old one, and what the old one held
    is forgotten; a value that is used in the meantime enters the young one again. So a flood of values used
    once never drives out those that are used all the time, and no use costs more than two look-ups.

    Safe to share between threads: two that rotate at once forget some values early, and nothing else.
    """

    __slots__ = ("_old", "_size", "_young")

    def __init__(self, size: int) -> None:
        self._size = size
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get(self, key: K) -> V | None:
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def drop(self, key: K) -> None:
        """Forget a value, if it is known."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """Forget all values."""
        self._young, self._old = {}, {}

    def put(self, key: K, value: V) -> None:
        if len(self._young) >= self._size:
            self._old = self._young
            self._young = {}
        self._young[key] = value
