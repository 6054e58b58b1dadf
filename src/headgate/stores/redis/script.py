"""Lua scripts: assembled from the algorithms' twins, and identified in Redis by their digests. Pure; no I/O."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

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


def whole(command: Command) -> Command:
    """Return a command with the text of its script instead of the digest, for a server that does not know it yet."""
    digest = command[1]
    assert isinstance(digest, str)
    return ("EVAL", text(digest), *command[2:])


def text(digest: str) -> str:
    """Return the text of a registered script."""
    return _sources[digest]


def encode_command(command: Command) -> bytes:
    """Return the bytes of a command as they are sent."""
    result: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub knows tuples of one
    return result
