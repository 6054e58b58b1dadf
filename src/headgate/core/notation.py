"""Explain why a notation cannot be parsed: the wrong word, its position, and a likely correction."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from headgate.core.suggestion import did_you_mean, nearest

EXAMPLES: Final = (
    "write it like '100/minute', '10 per second burst 20', '500/15m gcra', '1000/calendar month' "
    "or '5 concurrent ttl 60s'"
)
_NUMBER: Final = r"[0-9]+(?:_[0-9]+)*"
_LIMIT: Final = re.compile(rf"{_NUMBER}\s*")
_SEPARATOR: Final = re.compile(r"(?:/|per\b)\s*")
_WINDOW: Final = re.compile(r"(?:\d+(?:\.\d+)?)?\s*[a-z]+(?=\s|$)\s*")
_BURST: Final = re.compile(rf"burst\s+{_NUMBER}(?=\s|$)\s*")
_WORD: Final = re.compile(r"[a-z_]+(?:-[a-z_]+)*|\S+?(?=[\s/]|$)|/")
_JOINT: Final = re.compile(r"(?:[a-z],|,\s|&|\||\band\b)\s*\d")  # between two quotas, in place of ';'


def explain(notation: object, algorithms: Collection[str]) -> str:
    """Return what is wrong with a notation and how to write it."""
    if not isinstance(notation, str):
        return f"cannot read {notation!r} as a quota; {EXAMPLES}"
    text = notation.lower()
    if not text.strip():
        return f"cannot read {notation!r} as a quota: it is empty, or there is a ';' too many; {EXAMPLES}"
    if _JOINT.search(text):
        return f"cannot read {notation!r} as a quota; join several with ';', as in '10/second; 100/minute'"
    at = len(text) - len(text.lstrip())
    parts = ((_LIMIT, "a whole number"), (_SEPARATOR, "'/', 'per' or 'concurrent'"), (_WINDOW, "a window like '15m'"))
    for part, missing in parts:
        found = part.match(text, at)
        if found is None and part is _SEPARATOR and text.startswith("concurrent", at):
            at += len("concurrent")
            return _pointing(notation, at, "expected 'ttl' and a duration, as in 'ttl 60s'", ("ttl",))
        if found is None:
            known = ("per", "concurrent") if part is _SEPARATOR else ()
            return _pointing(notation, at, f"expected {missing}", known)
        if part is _WINDOW and nearest(found.group().strip(), ("calendar",)):
            return _pointing(notation, at, "expected a window like '15m'", ("calendar",))
        at = found.end()
    found = _BURST.match(text, at)
    if found is not None:
        return _pointing(notation, found.end(), f"expected an algorithm ({', '.join(algorithms)})", algorithms)
    if text.startswith("burst", at):
        return _pointing(notation, at + len("burst"), "expected a whole number, as in 'burst 20'", ())
    expected = f"expected 'burst' and a number, or an algorithm ({', '.join(algorithms)})"
    word = _WORD.match(text, at)
    if word is not None and word.group() in algorithms:
        at = word.end()
        expected = "nothing may follow the algorithm: a burst comes before it"
        return _pointing(notation, at, expected, ())
    return _pointing(notation, at, expected, ("burst", *algorithms))


def _pointing(notation: str, at: int, expected: str, known: Collection[str]) -> str:
    at += len(notation[at:]) - len(notation[at:].lstrip())
    if at >= len(notation):
        return f"cannot read {notation!r} as a quota: it ends too early, {expected}; {EXAMPLES}"
    found = _WORD.match(notation.lower(), at)
    word = notation[at : found.end()] if found else notation[at]
    meant = "" if word.lower() in known else did_you_mean(word, known)
    where = f"cannot read {notation!r} as a quota: {word!r} (character {at + 1})"
    return f"{where}{meant}" if meant else f"{where}: {expected}; {EXAMPLES}"
