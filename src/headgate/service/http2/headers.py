"""Header fields. The hpack library reads them; we write them as plain literals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from hpack import Decoder, HPACKError, OversizedHeaderListError

from headgate.service.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ProtocolError

Fields = Sequence[tuple[bytes, bytes]]

MAX_LIST: Final = 65_536  # bytes of one list of fields; a larger one ends the connection
MAX_COUNT: Final = 256  # fields of one list: each may be one byte of a block, but takes long to read
REMEMBERED: Final = 64  # blocks


class HeaderReader:
    """Reads the header blocks of one connection in order, and converts each with `make`.

    Clients repeat the same few bytes with every call. So results are cached by block, until the dynamic table changes.
    """

    def __init__(self, make: Callable[[Fields], Any]) -> None:
        self._make = make
        self._decoder = _BoundedDecoder(max_header_list_size=MAX_LIST)
        self._known: dict[bytes, Any] = {}

    def recall(self, block: bytes) -> Any:
        """Return the cached result of a block; None if it must be read."""
        return self._known.get(block)

    def read(self, block: bytes) -> tuple[Fields, int, bool]:
        """Return a block's fields, its number of entries, and whether it changed the table. Raises `ProtocolError`."""
        decoder = self._decoder
        table = decoder.header_table
        entries = table.dynamic_entries
        before = (len(entries), table.maxsize, entries[0] if entries else None)
        decoder.count = 0
        try:
            fields = decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise ProtocolError(ENHANCE_YOUR_CALM, "the header list is too large") from error
        except (HPACKError, UnicodeDecodeError) as error:
            raise ProtocolError(COMPRESSION_ERROR, "the header block cannot be read") from error
        # New entries are added at the table's front, as new objects.
        changed = (len(entries), table.maxsize) != before[:2] or bool(entries and entries[0] is not before[2])
        if changed:
            self._known.clear()
        return fields, decoder.count, changed  # type: ignore[return-value]  # with `raw`, pairs of bytes

    def make(self, block: bytes, fields: Fields, *, changed: bool) -> Any:
        """Convert a block's fields with `make`, and cache the result if the block did not change the table."""
        made = self._make(fields)
        if not changed:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[block] = made
        return made


class _BoundedDecoder(Decoder):
    """hpack's decoder with a limit on the number of fields: its own limit is only on their bytes."""

    count = 0

    def _decode_indexed(self, data: Any) -> Any:
        self._count()
        return super()._decode_indexed(data)

    def _decode_literal(self, data: Any, should_index: bool) -> Any:
        self._count()
        return super()._decode_literal(data, should_index)

    def _update_encoding_context(self, data: Any) -> Any:
        self._count()
        return super()._update_encoding_context(data)

    def _count(self) -> None:
        self.count += 1
        if self.count > MAX_COUNT:
            raise OversizedHeaderListError(f"more than {MAX_COUNT} header fields")


def field(name: bytes, value: bytes) -> bytes:
    """Return a field as a literal that does not change the table."""
    return b"\0%b%b%b%b" % (_length(len(name)), name, _length(len(value)), value)


def status(code: int) -> bytes:
    """Return the field `:status`."""
    return b"\x88" if code == 200 else field(b":status", b"%d" % code)  # 200 is in the static table


def _length(number: int) -> bytes:
    if number < 127:  # fits into the prefix
        return bytes((number,))
    number -= 127
    written = bytearray(b"\x7f")
    while number >= 128:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)
