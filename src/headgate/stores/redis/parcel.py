"""A command for a server, and the bytes that it is sent as. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from headgate.stores.redis import script

ASKING: Final = script.packed(("ASKING",))


class Parcel(NamedTuple):
    """A command for a server."""

    command: script.Command
    asking: bool = False  # of a slot that it is about to take over
    packed: bytes | None = None  # the command as it goes over the wire, if that is known

    def bytes(self, *, whole: bool = False) -> bytes:
        """As it goes over the wire. `whole`: with the text of its script."""
        packed = script.packed(script.whole(self.command)) if whole else self.packed or script.packed(self.command)
        return ASKING + packed if self.asking else packed


def packed_again(parcels: Iterable[Parcel]) -> bytes:
    """Pack commands whose scripts the server does not know: the first of each script carries its text."""
    known: set[script.Argument] = set()
    packed = []
    for parcel in parcels:
        digest = parcel.command[1]
        packed.append(parcel.bytes(whole=digest not in known))
        known.add(digest)
    return b"".join(packed)
