"""The memory store's ledger. Twin of redis/ledger.lua. Callers hold the store's lock."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.stores.protocol import LedgerPage, Swap


class Ledger:
    """Pages by name, until they expire. Writing a page also drops expired ones."""

    def __init__(self) -> None:
        self._pages: dict[str, tuple[str, int]] = {}

    def read(self, names: Sequence[str], now_us: int) -> list[LedgerPage]:
        return [LedgerPage(now_us, self._text(name, now_us)) for name in names]

    def swap(self, swaps: Sequence[Swap], now_us: int) -> list[bool]:
        written = []
        for swap in swaps:
            same = self._text(swap.name, now_us) == swap.before
            if same:
                self._pages.pop(swap.name, None)
                self._pages[swap.name] = (swap.after, now_us + swap.ttl_us)
                self._forget(now_us)
            written.append(same)
        return written

    def clear(self) -> None:
        self._pages.clear()

    def _text(self, name: str, now_us: int) -> str | None:
        text, until_us = self._pages.get(name, (None, 0))
        return text if until_us > now_us else None

    def _forget(self, now_us: int) -> None:
        for name, (_, until_us) in list(zip(self._pages, self._pages.values(), strict=True))[:2]:
            if until_us <= now_us:
                del self._pages[name]
