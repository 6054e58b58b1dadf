"""Slot ids: the concurrency slots of one request, as text with which any process on the same store can release them.

An id names the keys that hold the slot, so no process has to remember them. The id is encoded, not signed, so the
reader treats it as untrusted input. An id can name only keys of concurrency limits, behind the store's own prefix, and
in them only the entry under the id's own 96 random bits. A client that cannot guess those bits can neither release nor
renew another client's slot. `docs/adr` gives the reasons.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import b2a_base64
from collections.abc import Sequence
from datetime import timedelta
from os import urandom
from typing import Any, Final

from headgate.core.check import Check
from headgate.core.fork import renew_in_children
from headgate.core.quota import CONCURRENCY, MAX_INT, MAX_WINDOW_US, MIN_WINDOW_US, Quota
from headgate.errors import InvalidCheck

MAX_ID: Final = 65_536  # characters
MAX_HELD: Final = 64  # limits in one id
IDS_AT_A_TIME: Final = 128
_VERSION: Final = "s1."
_URLSAFE: Final = bytes.maketrans(b"+/", b"-_")
_ENTRY: Final = re.compile(r"[A-Za-z0-9_-]{16}").fullmatch
_SPACE: Final = re.compile(
    rf"[A-Za-z0-9_.\-~@%#]{{1,128}}:\{{\*\}}:[A-Za-z0-9_.\-~@%#/]{{1,300}}:{CONCURRENCY}"
).fullmatch


class _RandomIds:
    """Random ids, generated in bulk. A forked child starts over, because it must not hand out its parent's ids."""

    def __init__(self) -> None:
        self.reset_after_fork()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        self._ready: list[str] = []

    def pop(self) -> str:
        """Return the random part of a slot's id, which names it in its keys: 96 bits that cannot be guessed."""
        try:
            return self._ready.pop()
        except IndexError:
            text = b2a_base64(urandom(12 * IDS_AT_A_TIME), newline=False).translate(_URLSAFE).decode()
            first, *others = [text[at : at + 16] for at in range(0, len(text), 16)]
            self._ready.extend(others)
            return first


new_slot: Final = _RandomIds().pop


def encode_slot(held: Sequence[Check]) -> str:
    """Return the id of the slot that these checks hold."""
    rows: list[tuple[Any, ...]] = []
    for check in held:
        row = (check.rule, check.key_template, check.subject, check.cost, check.quota.window_us)
        rows.append(row if check.enforced else (*row, False))
    text = json.dumps((held[0].slot, rows), separators=(",", ":"))
    return _VERSION + urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_slot(slot_id: str) -> tuple[Check, ...]:
    """Return the checks that hold the slot with this id. Raises `InvalidCheck` if the text is not a slot's id."""
    if isinstance(slot_id, str) and slot_id.startswith(_VERSION) and len(slot_id) <= MAX_ID and slot_id.isascii():
        encoded = slot_id[len(_VERSION) :]
        try:
            slot, rows = json.loads(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
            if _ENTRY(slot) and 0 < len(rows) <= MAX_HELD:
                return tuple([_held_check(slot, *row) for row in rows])
        except (binascii.Error, ValueError, TypeError, RecursionError):
            pass
    raise InvalidCheck(f"slot: must be the id of a slot, as acquire returns it, got {str(slot_id)[:64]!r}")


def _held_check(
    slot: str, rule: Any, key_template: Any, subject: Any, cost: Any, ttl_us: Any, enforced: Any = True
) -> Check:
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in (cost, ttl_us))
    texts = isinstance(rule, str) and isinstance(key_template, str) and isinstance(subject, str)
    if not whole or not texts or not isinstance(enforced, bool) or not _SPACE(key_template):
        raise ValueError("not a slot's key")
    if not 1 <= cost <= MAX_INT or not MIN_WINDOW_US <= ttl_us <= MAX_WINDOW_US:
        raise ValueError("not a slot's figures")
    quota = Quota(cost, timedelta(microseconds=ttl_us), algorithm=CONCURRENCY)
    return Check(rule, key_template, subject, quota, cost, enforced, slot=slot)
