"""Names of facts for the keys of Envoy's descriptors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

DOMAIN: Final = "domain"  # the fact with a request's domain
KEYS: Final = "descriptor_keys"  # … with its descriptor's keys in order, for rules that match one form of descriptor

_FACTS: Final = {
    "remote_address": "ip",
    "masked_remote_address": "ip",
    "user_id": "user",
    "path": "endpoint",
    "header_match": "generic_key",
}


def fact_names(keys: Iterable[str]) -> Iterator[str]:
    """Yield the name of each entry's fact. A repeated one gets a number: `generic_key`, `generic_key_2`."""
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
    """Return the fact `descriptor_keys`, as `message_type,to_number`."""
    return ",".join(keys)
