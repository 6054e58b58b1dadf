"""Requests that are alike, read as they are on the wire: of each, who is asking, and the bytes of the rest.

The rest is nearly always one of a few that came before, and then nothing of it has to be read again. What is not as
simple as that is left to whoever reads messages in full: what is put together of two parts means what both mean, so
nothing is read otherwise here than there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from headgate.errors import InvalidCheck
from headgate.service.data import MAX_BATCH, DataPlane, Shape
from headgate.service.protos import rate_limiter_pb2 as messages
from headgate.service.rpc.facts import cost_of, facts_of, identity_of

REMEMBERED: Final = 1_024  # rests
MAX_REST: Final = 512  # bytes of one that is remembered

_TEXT: Final = 0x0A  # begins `identifier`, and each of `checks`
_MORE: Final = 0x80  # a length that does not end with this byte


class Some(NamedTuple):
    """Requests that are alike. Their shapes may differ; not what these have in common."""

    shapes: Sequence[Shape]
    subjects: Sequence[str]


class Reader:
    """Reads requests that are alike. For one limiter's."""

    def __init__(self, data: DataPlane) -> None:
        self._data = data
        self._shapes: dict[bytes, Shape] = {}

    def check(self, received: bytes) -> Some | None:
        """A CheckRequest; None when it is to be read in full."""
        if len(received) < 2 or received[0] != _TEXT or received[1] >= _MORE:
            return None
        end = 2 + received[1]
        shape = self._shape(received[end:]) if 2 < end <= len(received) else None
        if shape is None:
            return None
        try:
            return Some((shape,), (str(received[2:end], "utf-8"),))
        except UnicodeDecodeError:
            return None

    def check_many(self, received: bytes) -> Some | None:
        """A CheckBatchRequest."""
        try:
            return self._check_many(received)
        except (IndexError, UnicodeDecodeError):  # it breaks off, or is no text
            return None

    def _check_many(self, received: bytes) -> Some | None:
        at, size = 0, len(received)
        known = self._shapes.get
        shapes: list[Shape] = []
        subjects: list[str] = []
        last: Shape | None = None
        while at < size:
            if received[at] != _TEXT:
                return None
            length = received[at + 1]
            at += 2
            if length >= _MORE:
                if received[at] >= _MORE:
                    return None
                length += (received[at] << 7) - _MORE
                at += 1
            end = at + length
            own = received[at + 1]
            start = at + 2
            at = start + own
            if received[start - 2] != _TEXT or not 0 < own < _MORE or not at <= end <= size:
                return None
            rest = received[at:end]
            shape = known(rest)
            if shape is None or shape is not last:
                shape = self._shape(rest)
                if shape is None or (last is not None and shape.likeness is not last.likeness):
                    return None
                last = shape
            subjects.append(str(received[start:at], "utf-8"))
            shapes.append(shape)
            at = end
        return Some(shapes, subjects) if 0 < len(subjects) <= MAX_BATCH else None

    def _shape(self, rest: bytes) -> Shape | None:
        """What a CheckRequest says but for `identifier`; None if it is to be read in full."""
        shape = self._shapes.get(rest)
        if shape is not None and self._data.holds(shape):
            return shape
        if len(rest) > MAX_REST:
            return None
        try:
            request = messages.CheckRequest.FromString(rest)
            fact = identity_of(request.dimension)
            if request.identifier or fact is None or request.idempotency_key or request.timestamp or request.facts:
                return None
            request.dimension = messages.DIMENSION_UNSPECIFIED
            shape = self._data.shape(facts_of(request), fact, cost_of(request))
        except (DecodeError, InvalidCheck):
            return None
        if shape is not None:
            if len(self._shapes) >= REMEMBERED:
                self._shapes.clear()
            self._shapes[rest] = shape
        return shape
