"""Commands, and the Lua scripts that they run: assembled from the algorithms' twins, and identified by their digests.

Pure; no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final, NamedTuple

from hiredis import pack_command

from headgate.algorithms import lua
from headgate.core.quota import BUCKETS

Argument = str | bytes | int
Command = tuple[Argument, ...]

# Of check.lua, innermost first.
FRAGMENTS: Final = ("wait", "undo", "penalty", "undo_once", "idempotency", "reservation", "slot")
_PLACE: Final = "-- FRAGMENTS\n"  # placeholder in check.lua

_sources: dict[str, str] = {}  # by digest


@cache
def check_digest(algorithms: tuple[str, ...], fragments: tuple[str, ...]) -> str:
    """Return the digest of check.lua with the twins of these algorithms and these fragments.

    A script runs from the top at every call, so it contains nothing that the call does not need.
    """
    shared = ["prelude"]
    if any(name in BUCKETS for name in algorithms):
        shared.append("held")
    if "undo" in fragments or "undo_once" in fragments:
        shared.append("idle")
    own = "".join([source(f"check_{name}") for name in FRAGMENTS if name in fragments])
    return register("\n".join([*map(lua, (*shared, *algorithms)), source("check").replace(_PLACE, own)]))


@cache
def digest_of(name: str) -> str:
    """Return the digest of a script that is one file of this package, after now.lua."""
    return register(source("now") + source(name))


def source(name: str) -> str:
    """Return the text of a Lua file of this package."""
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def register(text: str) -> str:
    """Register a script and return its digest; `text` returns the script by its digest."""
    digest = sha1(text.encode(), usedforsecurity=False).hexdigest()
    _sources[digest] = text
    return digest


def with_text(command: Command) -> Command:
    """Return a command with the text of its script instead of the digest, for a server that does not know it yet."""
    digest = command[1]
    assert isinstance(digest, str)
    return ("EVAL", text(digest), *command[2:])


def text(digest: str) -> str:
    """Return the text of a registered script."""
    return _sources[digest]


def command_of(digest: str, keys: Sequence[str], now_us: int | None, *arguments: Argument) -> Command:
    """Return the command that runs a script at `now_us`; None: at the server's time."""
    return ("EVALSHA", digest, len(keys), *keys, "" if now_us is None else now_us, *arguments)


def encode_command(command: Command) -> bytes:
    """Return the bytes of a command as they are sent."""
    result: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub knows tuples of one
    return result


ASKING: Final = encode_command(("ASKING",))


class EncodedCommand(NamedTuple):
    """A command, and its bytes if they are known."""

    command: Command
    asking: bool = False  # it uses a slot that the server is importing
    packed: bytes | None = None

    def bytes(self, *, whole: bool = False) -> bytes:
        """Return the bytes to send. `whole`: with the text of its"""
        packed = encode_command(with_text(self.command)) if whole else self.packed or encode_command(self.command)
        return ASKING + packed if self.asking else packed


def pack(commands: Iterable[EncodedCommand], known: set[Argument]) -> bytes:
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
