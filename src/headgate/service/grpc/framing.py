"""gRPC's wire format: length-prefixed messages, response headers and trailers."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final

from headgate.service.grpc.status import Code, Ended
from headgate.service.http2 import headers

PREFIX: Final = Struct(">BL")  # before a message: whether it is compressed, and its length
MAX_DETAILS: Final = 1_024  # bytes: clients do not read longer ones
IDENTITY: Final = b"identity"
_WINDOWS: Final = {b"gzip": 31, b"deflate": 15}  # zlib's window bits for each encoding

ENCODINGS: Final = (IDENTITY, *_WINDOWS)
HEAD: Final = (
    headers.status(200)
    + headers.field(b"content-type", b"application/grpc")
    + headers.field(b"grpc-accept-encoding", b",".join(ENCODINGS))
)


def trailers(code: Code, details: str = "") -> bytes:
    """Return the block that ends a response."""
    status = headers.field(b"grpc-status", b"%d" % code)
    return status + headers.field(b"grpc-message", percent_encode(details)) if details else status


OK: Final = trailers(Code.OK)


def percent_encode(text: str) -> bytes:
    """Encode details for a header field: percent-encoded UTF-8, cut off at `MAX_DETAILS`."""
    escaped = bytearray()
    for character in text:
        for byte in character.encode("utf-8", "replace"):
            escaped += b"%%%02X" % byte if byte < 0x20 or byte > 0x7E or byte == 0x25 else bytes((byte,))
        if len(escaped) > MAX_DETAILS:
            return bytes(escaped + b"...")
    return bytes(escaped)


def frame_message(message: bytes) -> bytes:
    """Return a message with its length prefix."""
    return PREFIX.pack(0, len(message)) + message


class MessageReader:
    """Finds the messages in a body that arrives in parts."""

    __slots__ = ("_charge", "_encoding", "_gathered", "_max_message")

    def __init__(self, encoding: bytes, max_message: int, charge: Callable[[int], None] | None = None) -> None:
        """Call `charge` for each message: with its decompressed size in bytes, or 0 if it was not compressed."""
        self._encoding = encoding
        self._max_message = max_message
        self._charge = charge
        self._gathered = bytearray()

    @property
    def gathered(self) -> int:
        """Bytes of the incomplete message."""
        return len(self._gathered)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that this part completes. Raises `Ended`."""
        gathered = self._gathered
        gathered += data
        messages: list[bytes] = []
        at = 0
        while len(gathered) - at >= PREFIX.size:
            compressed, size = PREFIX.unpack_from(gathered, at)
            if size > self._max_message:
                raise self._too_large(size)
            end = at + PREFIX.size + size
            if end > len(gathered):
                break
            message = bytes(gathered[at + PREFIX.size : end])
            messages.append(self._decompress(message) if compressed else message)
            if self._charge is not None:
                self._charge(len(messages[-1]) if compressed else 0)
            at = end
        del gathered[:at]
        return messages

    def _decompress(self, message: bytes) -> bytes:
        window = _WINDOWS.get(self._encoding)
        if window is None:
            raise Ended(Code.INTERNAL, "the message is compressed, and grpc-encoding does not say how")
        reader = zlib.decompressobj(window)
        try:
            decompressed = reader.decompress(message, self._max_message + 1)
        except zlib.error:
            raise Ended(Code.INTERNAL, "the message cannot be decompressed") from None
        if len(decompressed) > self._max_message:
            if self._charge is not None:
                self._charge(len(decompressed))
            raise self._too_large(len(decompressed))
        if not reader.eof:
            raise Ended(Code.INTERNAL, "the message cannot be decompressed: it breaks off")
        return decompressed

    def _too_large(self, size: int) -> Ended:
        return Ended(
            Code.RESOURCE_EXHAUSTED, f"the message is larger than max: {size:,} bytes, of {self._max_message:,}"
        )
