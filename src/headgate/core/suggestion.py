"""Suggest the known word nearest to a mistyped one. For error messages."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most similar to `word`, ignoring case; None if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - only mistakes need it: they are rare and may be slow

    by_lower = {one.lower(): one for one in known}
    found = get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'user'?"`, to append to an error message; empty if no known word is similar."""
    found = nearest(word, known)
    return "" if found is None else f"; did you mean {found!r}?"
