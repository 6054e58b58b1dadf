"""Where one rule keeps one subject's state.

In Redis a key reads `<prefix>:<dimension>:{<subject>}:<rule>:<algorithm>`. The subject is the hash tag, so that on a
cluster all limits of one subject share a slot and are decided in one atomic step. The prefix belongs to the store,
which puts it before every key and channel when it encodes a command: everything in this module is without it.

A *space* is a key with `*` for the subject: all that a rule fixes once. A store that lives in this process
keeps one table per space and never builds the text of a key; Redis is given `key(space, subject)`, behind its prefix.

A limit that a limiter makes itself, for a route say, has `<limiter>/<rule>` in the place of the rule. No escaped text
has a `/`, so such a limit never shares a key with a rule of the same id, nor with a limit of another limiter.

A rule with `shards` has a space for each: the first is the plain one, the others read `<dimension>:{*#<shard>}:…`,
so that the shards of one subject are in slots of their own.

Subjects, dimensions and rule ids are escaped, so that two of them never make the same key, whatever characters
they contain: everything but letters, digits and `_.-~@` is percent-encoded as UTF-8.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final
from urllib.parse import quote, unquote

DEFAULT_PREFIX: Final = "rl"
MAX_PREFIX: Final = 64
MAX_ESCAPED: Final = 128
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.\-]+(?::[A-Za-z0-9_.\-]+)*").fullmatch
_SAFE: Final = re.compile(r"[A-Za-z0-9_.\-~@]{1,128}").fullmatch
_EMPTY: Final = "%"  # an empty hash tag would make Redis hash the whole key; a lone % is never an escape


def checked_prefix(prefix: str) -> str:
    """Return `prefix` if a store's keys may begin with it. Raises `ValueError`."""
    if isinstance(prefix, str) and len(prefix) <= MAX_PREFIX and _PREFIX(prefix):
        return prefix
    raise ValueError(
        f"must be 1 to {MAX_PREFIX} letters, digits, '_', '-' and '.', in parts that ':' may separate, "
        f"as in 'shop-a' or 'prod:shop-a', got {prefix!r}"
    )


def space(dimension: str, rule: str, algorithm: str, *, limiter: str | None = None) -> str:
    """The key of `rule` with a `*` in the subject's place. `limiter` names the one that made the rule itself."""
    name = escape(rule) if limiter is None else qualified(limiter, rule)
    return f"{escape(dimension)}:{{*}}:{name}:{algorithm}"


def qualified(limiter: str, name: str) -> str:
    """The name of something that a limiter made itself. Injective, and different from every escaped text."""
    return f"{escape(limiter)}/{escape(name)}"


def key(space: str, subject: str) -> str:
    """The key of one subject in a space."""
    return space.replace("*", escape(subject), 1)


def shard_space(space: str, shard: int) -> str:
    """Return the space of one shard, from 0.

    An escaped subject has `#` only at its beginning, so the keys of two subjects never collide.
    """
    return space if shard == 0 else space.replace("*", f"*#{shard}", 1)


def dimension_of(space: str) -> str:
    """The dimension whose subjects have their keys in a space; its hash, when it is very long."""
    return unquote(space.split(":", 1)[0], errors="surrogatepass")


def penalty_keys(fact: str, name: str) -> tuple[str, str]:
    """Where a client's block is kept, and its violations. The client is the hash tag, as it is of its own limits."""
    stem = f"penalty:{{{escape(name)}}}:{escape(fact)}"
    return f"{stem}:block", f"{stem}:violations"


def escape(text: str) -> str:
    """`text` in characters that are safe in a key; injective, and at most 128 characters long.

    What would be longer is hashed (256 bits) behind a `#`, which an escaped text never contains.
    """
    if _SAFE(text):
        return text
    if not text:
        return _EMPTY
    if len(text) <= MAX_ESCAPED:
        escaped = quote(text, safe="@", errors="surrogatepass")
        if len(escaped) <= MAX_ESCAPED:
            return escaped
    return "#" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def joined(parts: tuple[str, ...]) -> str:
    """One subject out of several facts (`user+endpoint`), injectively: lengths first, so nothing can blur."""
    return "".join(f"{len(part)}:{part}" for part in parts)


def split(subject: str) -> tuple[str, ...]:
    """The facts that `joined` made one subject of."""
    parts = []
    while subject:
        length, _, rest = subject.partition(":")
        parts.append(rest[: int(length)])
        subject = rest[int(length) :]
    return tuple(parts)
