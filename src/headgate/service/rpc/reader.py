"""Decodes requests quickly: splits each into its `identifier` and the bytes of the rest.

The rest nearly always equals that of an earlier request, whose decoded form is reused. Protobuf decodes all other
requests. It reads concatenated messages as one merged message, so both ways give the same result.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from headgate.core.cost import Cost
from headgate.errors import InvalidCheck
from headgate.service.data_plane import MAX_BATCH, BatchedRequest
from headgate.service.protos import rate_limiter_pb2 as messages
from headgate.service.rpc.facts import cost_of, facts_of, identity_of

REMEMBERED: Final = 1_024  # rests
MAX_REST: Final = 512  # bytes of a cached rest

_TEXT: Final = 0x0A  # begins `identifier`, and each of `checks`
_MORE: Final = 0x80  # marks a length that continues in the next byte
_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class


class Rest(NamedTuple):
    """A CheckRequest without its `identifier`."""

    facts: dict[str, str]
    fact: str  # the name of the fact in `identifier`
    cost: Cost
    varying: str | None  # the only fact in which requests with the same rest differ; None for `ip`, which adds facts


class Reader:
    """Decodes requests, and caches their rests."""

    def __init__(self) -> None:
        self._rests: dict[bytes, Rest] = {}

    def check(self, received: bytes) -> tuple[dict[str, str], Cost, str | None, int]:
        """Read a CheckRequest: facts, cost, idempotency key and timestamp. Raises `InvalidCheck` and `DecodeError`."""
        if len(received) > 2 and received[0] == _TEXT and 0 < received[1] < _MORE:
            end = 2 + received[1]
            if end <= len(received):
                text = received[end:]
                rest = self._rests.get(text) or self._rest(text)
                if rest is not None:
                    facts, fact, cost, _ = rest
                    try:
                        return {**facts, fact: str(received[2:end], "utf-8")}, cost, None, 0
                    except UnicodeDecodeError:
                        pass  # protobuf will report the error
        request = messages.CheckRequest.FromString(received)
        return facts_of(request), cost_of(request), request.idempotency_key or None, request.timestamp

    def check_many(self, received: bytes) -> tuple[list[BatchedRequest], list[tuple[int, int]]]:
        """Read a CheckBatchRequest: its requests, and the indexes and timestamps of those with a timestamp.

        Raises `InvalidCheck` and `DecodeError`.
        """
        try:
            asks = self._split_many(received)
        except (IndexError, UnicodeDecodeError):  # it is cut off, not UTF-8, or of another form
            return _read_many(received)
        return (asks, []) if len(asks) <= MAX_BATCH else _read_many(received)

    def _split_many(self, received: bytes) -> list[BatchedRequest]:
        """Read the requests of a batch. Raises `IndexError` if protobuf must read them, and `UnicodeDecodeError`."""
        asks: list[BatchedRequest] = []
        text, rest, varying = b"", self._rest(b""), None
        at, size = 0, len(received)
        while at < size:
            if received[at] != _TEXT:
                raise IndexError
            length = received[at + 1]
            at += 2
            if length >= _MORE:
                if received[at] >= _MORE:
                    raise IndexError
                length += (received[at] << 7) - _MORE
                at += 1
            end = at + length
            own = received[at + 1]
            start = at + 2
            middle = start + own
            if received[at] != _TEXT or not 0 < own < _MORE or not middle <= end <= size:
                raise IndexError
            if received[middle:end] != text:  # most are like the one before
                text = received[middle:end]
                rest = self._rests.get(text) or self._rest(text)
                varying = None
            if rest is None:
                raise IndexError
            facts = rest[0].copy()
            facts[rest[1]] = str(received[start:middle], "utf-8")
            asks.append(_new(BatchedRequest, (facts, rest[2], None, varying)))
            varying = rest[3]
            at = end
        return asks

    def _rest(self, text: bytes) -> Rest | None:
        """Read a CheckRequest without its `identifier`; None if protobuf must read all of it."""
        rest = self._rests.get(text)
        if rest is not None or len(text) > MAX_REST:
            return rest
        try:
            request = messages.CheckRequest.FromString(text)
            fact = identity_of(request.dimension)
            if request.identifier or fact is None or request.idempotency_key or request.timestamp or request.facts:
                return None
            request.dimension = messages.DIMENSION_UNSPECIFIED
            rest = Rest(facts_of(request), fact, cost_of(request), None if fact == "ip" else fact)
        except (DecodeError, InvalidCheck):
            return None
        if len(self._rests) >= REMEMBERED:
            self._rests.clear()
        self._rests[text] = rest
        return rest


def _read_many(received: bytes) -> tuple[list[BatchedRequest], list[tuple[int, int]]]:
    """Read a CheckBatchRequest with protobuf."""
    checks = messages.CheckBatchRequest.FromString(received).checks
    if len(checks) > MAX_BATCH:
        raise InvalidCheck(f"checks: at most {MAX_BATCH:,} in one call, got {len(checks):,}")
    asks = []
    for index, check in enumerate(checks):
        try:
            cost = cost_of(check)
            asks.append(BatchedRequest(facts_of(check), cost, check.idempotency_key or None if cost else None))
        except InvalidCheck as error:
            raise InvalidCheck(f"checks[{index}]: {error}") from None
    return asks, [(index, check.timestamp) for index, check in enumerate(checks) if check.timestamp]
