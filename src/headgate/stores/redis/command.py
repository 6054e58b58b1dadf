"""Commands as they are sent to a server. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from headgate.stores.redis import script

ASKING: Final = script.encode_command(("ASKING",))


class EncodedCommand(NamedTuple):
    """A command, and its bytes if they are known."""

    command: script.Command
    asking: bool = False  # it uses a slot that the server is importing
    packed: bytes | None = None

    def bytes(self, *, whole: bool = False) -> bytes:
        """Return the bytes to send. `whole`: with the text of its script."""
        packed = (
            script.encode_command(script.whole(self.command))
            if whole
            else self.packed or script.encode_command(self.command)
        )
        return ASKING + packed if self.asking else packed


def pack(commands: Iterable[EncodedCommand], known: set[script.Argument]) -> bytes:
    """Pack commands for a connection. Scripts that are not `known` there are sent with their text, and become known.

    So the commands of one call are executed in order, even if the server has never seen their scripts.
    """
    packed = []
    for command in commands:
        name, digest = command.command[:2]
        is_new = name == "EVALSHA" and digest not in known
        packed.append(command.bytes(whole=is_new))
        if is_new:
            known.add(digest)
    return b"".join(packed)
