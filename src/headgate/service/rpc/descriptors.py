"""Converts Envoy's descriptors to facts.

An entry with a well-known key becomes one of our facts; any other becomes a fact with its key as name, for rules to
`match` or count by. A repeated fact gets a number, so that nothing is lost: `generic_key`, `generic_key_2`. The fact
`descriptor_keys` lists the keys, so that a rule can match descriptors with exactly these entries.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from headgate.core.key import join_facts
from headgate.core.quota import Quota
from headgate.errors import InvalidCheck
from headgate.rules.facts import FactNames
from headgate.rules.plan import RulePlan, plan_of_rule
from headgate.rules.rule import Rule
from headgate.service.data_plane import MAX_BATCH
from headgate.service.protos import rls_pb2 as messages
from headgate.service.rpc.fact_names import DOMAIN, KEYS, fact_names, form_of

MAX_ENTRIES: Final = 32  # of one descriptor: Envoy's have a few
MAX_SPLIT: Final = 4_096  # bytes of a request that is split by hand
REMEMBERED: Final = 1_024  # lists of keys
MAX_LOGGED: Final = 100  # ignored facts
DESCRIPTOR: Final = "descriptor"  # the fact by which a request's own limits count

_FIRST: Final = 0x0A  # begins a message's first field: the domain, an entry, or its key
_SECOND: Final = 0x12  # … its second: a descriptor, or an entry's value
_MORE: Final = 0x80  # marks a length that continues in the next byte
_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class

log = logging.getLogger("headgate")

_UNITS: Final[dict[int, str]] = {
    messages.SECOND: "second",
    messages.MINUTE: "minute",
    messages.HOUR: "hour",
    messages.DAY: "day",
    messages.MONTH: "month",
    messages.YEAR: "year",
}


class Descriptor(NamedTuple):
    """A descriptor: the keys of its entries in UTF-8, their values, its own limit and its own cost."""

    keys: tuple[bytes, ...]
    values: list[str]
    limit: messages.RateLimitDescriptor.RateLimitOverride | None = None
    hits: int | None = None


class EnvoyRequest(NamedTuple):
    """A RateLimitRequest: the domain in UTF-8, its descriptors, and the cost of those without their own."""

    domain: bytes
    descriptors: list[Descriptor]
    hits: int = 1


def read_request(received: bytes) -> EnvoyRequest:
    """Read a RateLimitRequest. Raises `InvalidCheck` and `DecodeError`.

    Splits requests of the common form by hand, which takes half the time, and lets protobuf read all others.
    """
    try:
        return _split(received)
    except (IndexError, UnicodeDecodeError):
        return _parse(received)


def _parse(received: bytes) -> EnvoyRequest:
    """Read a request with protobuf."""
    request = messages.RateLimitRequest.FromString(received)
    if not request.domain:
        raise InvalidCheck("domain: must not be empty")
    if not 1 <= len(request.descriptors) <= MAX_BATCH:
        raise InvalidCheck(f"descriptors: must be from 1 to {MAX_BATCH:,}, got {len(request.descriptors):,}")
    descriptors = [
        Descriptor(
            tuple([entry.key.encode() for entry in one.entries]),
            [entry.value for entry in one.entries],
            one.limit if one.HasField("limit") else None,
            one.hits_addend.value if one.HasField("hits_addend") else None,
        )
        for one in request.descriptors
    ]
    return EnvoyRequest(request.domain.encode(), descriptors, request.hits_addend or 1)


def _split(received: bytes) -> EnvoyRequest:
    """Split a domain and at least one descriptor, with entries alone, all shorter than 128 bytes.

    Raises `IndexError` for any other form, and `UnicodeDecodeError`.
    """
    size = len(received)
    at = 2 + received[1]
    if received[0] != _FIRST or received[1] >= _MORE or at > size or size > MAX_SPLIT:
        raise IndexError
    domain = received[2:at]
    descriptors: list[Descriptor] = []
    while at < size:
        end = at + 2 + received[at + 1]
        if received[at] != _SECOND or received[at + 1] >= _MORE or end > size:
            raise IndexError
        keys: tuple[bytes, ...] = ()
        values = []
        at += 2
        while at < end:
            key = at + 4
            value = key + received[at + 3] + 2
            after = value + received[value - 1]
            if (
                received[at] != _FIRST
                or received[at + 2] != _FIRST
                or received[value - 2] != _SECOND
                or after != at + 2 + received[at + 1]
                or after > end
                or received[at + 1] >= _MORE
            ):
                raise IndexError
            keys += (received[key : value - 2],)
            values.append(str(received[value:after], "utf-8"))
            at = after
        descriptors.append(_new(Descriptor, (keys, values, None, None)))
    if not domain or not descriptors:
        raise IndexError
    request: EnvoyRequest = _new(EnvoyRequest, (domain, descriptors, 1))
    return request


class _Form(NamedTuple):
    """The facts of all descriptors of one domain with the same keys."""

    common: dict[str, str]  # the domain and the list of keys
    names: tuple[str | None, ...]  # of each entry's fact; None: it is left out
    is_whole: bool  # whether no entry is left out


class DescriptorFacts:
    """Finds the facts of descriptors. The names for a list of keys are computed once, until the rules' known facts
    change.

    Entries whose facts are not known are ignored, and logged once. For other callers they are an error, but Envoy
    allows a request when it gets an error.
    """

    def __init__(self) -> None:
        self._known: FactNames | None = None  # the facts for which `_forms` is valid
        self._forms: dict[tuple[bytes, tuple[bytes, ...]], _Form] = {}
        self._logged: set[str] = set()

    def facts(self, domain: bytes, descriptor: Descriptor, known: FactNames) -> dict[str, str]:
        """Return the known facts of one descriptor. Raises `InvalidCheck` and `DecodeError`."""
        if known is not self._known or len(self._forms) >= REMEMBERED:
            self._known = known
            self._forms.clear()
        keys, values = descriptor[0], descriptor[1]
        common, names, is_whole = self._forms.get((domain, keys)) or self._make_form(domain, keys, known)
        facts: dict[Any, str] = common.copy()
        for name, value in zip(names, values):  # noqa: B905 - strict takes as long as the loop
            facts[name] = value
        if not is_whole:
            del facts[None]
        return facts

    def _make_form(self, domain: bytes, keys: tuple[bytes, ...], known: FactNames) -> _Form:
        if len(keys) > MAX_ENTRIES:
            raise InvalidCheck(f"entries: at most {MAX_ENTRIES}, got {len(keys):,}")
        if not all(keys):
            raise InvalidCheck("entries: a key must not be empty")
        try:
            domain_text, *texts = [text.decode() for text in (domain, *keys)]
        except UnicodeDecodeError as error:
            raise DecodeError("a domain or a key is not UTF-8") from error
        names = tuple(fact_names(texts))
        for name in names:
            if name not in known and name not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(name)
                log.warning("Envoy: ignoring an entry of a descriptor: %s", known.describe_unknown(name))
        kept = tuple([name if name in known else None for name in names])
        form = self._forms[domain, keys] = _Form({DOMAIN: domain_text, KEYS: form_of(texts)}, kept, None not in kept)
        return form


def text_of_descriptor(domain: bytes, descriptor: Descriptor) -> str:
    """Return a descriptor as one string, for a limit that counts by it."""
    entries = zip(descriptor.keys, descriptor.values, strict=True)
    return join_facts((domain.decode(), *(part for key, value in entries for part in (key.decode(), value))))


def plan_of_limit(limit: messages.RateLimitDescriptor.RateLimitOverride) -> RulePlan:
    """Return the plan of a descriptor with its own limit. Raises `InvalidCheck`."""
    unit = _UNITS.get(limit.unit)
    if unit is None:
        raise InvalidCheck(f"limit.unit: {limit.unit} is not known")
    return _plan(limit.requests_per_unit, unit)


@lru_cache(maxsize=1_024)
def _plan(limit: int, unit: str) -> RulePlan:
    if limit == 0:  # no quota can be 0: use a quota of 1 and a cost of 2
        return plan_of_rule(Rule(id=f"envoy-none-per-{unit}", quota=Quota(1, unit), dimension=DESCRIPTOR, cost=2))
    # The limit is not part of the id, so that counts survive a change of it.
    return plan_of_rule(Rule(id=f"envoy-per-{unit}", quota=Quota(limit, unit), dimension=DESCRIPTOR))
