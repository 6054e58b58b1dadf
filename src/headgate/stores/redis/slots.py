"""Compute the cluster slot of a key. Pure; no I/O."""

from __future__ import annotations

from binascii import crc_hqx
from typing import Final

from headgate.core.check import Check, Client
from headgate.core.key import escape

SLOTS: Final = 16_384


def slot_of_tag(tag: str) -> int:
    """Return the slot of all keys with this hash tag."""
    return crc_hqx(tag.encode("utf-8", "surrogateescape"), 0) % SLOTS


def slot_of(name: str) -> int:
    """Return the slot of all keys of a subject, client or idempotency key: escaped, its name is their hash tag."""
    return slot_of_tag(escape(name))


def slot_of_key(key: str) -> int:
    """Return the slot of one of our keys, by its hash tag."""
    return slot_of_tag(key[key.index("{") + 1 : key.index("}")])


def slot_of_check(check: Check) -> int:
    return slot_of(check.subject) if "{*}" in check.key_template else slot_of_key(check.key)  # the latter for shards


def slot_of_client(client: Client) -> int:
    return slot_of(client.name)


RESERVATIONS: Final = slot_of("reservations")
