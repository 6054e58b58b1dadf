"""Which facts the entries of Envoy's descriptors are, by their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

DOMAIN: Final = "domain"  # the fact of a request's domain
KEYS: Final = "descriptor_keys"  # … of its descriptor's keys, in order: by it, a rule asks for descriptors of one form

_FACTS: Final = {
    "remote_address": "ip",
    "masked_remote_address": "ip",
    "user_id": "user",
    "path": "endpoint",
    "header_match": "generic_key",
}


def fact_names(keys: Iterable[str]) -> Iterator[str]:
    """Yield the fact of each entry. One that is said again gets a number: `generic_key`, `generic_key_2`."""
    taken = {DOMAIN, KEYS}
    for key in keys:
        name = fact = _FACTS.get(key, key)
        number = 1
        while name in taken:
            number += 1
            name = f"{fact}_{number}"
        taken.add(name)
        yield name


def form_of(keys: Iterable[str]) -> str:
    """The fact `descriptor_keys`: `message_type,to_number`."""
    return ",".join(keys)
