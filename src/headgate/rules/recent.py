"""A bounded cache of recently used values."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps between `size` and twice `size` of the most recently used values, in two generations.

    New values enter the young generation. When it is full, it becomes the old generation, and the values of the
    previous old generation are dropped. A value that is used while it is in the old generation enters the young one
    again. So a flood of values used once never evicts those in constant use, and no use costs more than two look-ups.

    Safe to share between threads: if two rotate at the same time, some values are dropped early.
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
        """Drop a value if it is cached."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """Drop all values."""
        self._young, self._old = {}, {}

    def put(self, key: K, value: V) -> None:
        if len(self._young) >= self._size:
            self._old = self._young
            self._young = {}
        self._young[key] = value
