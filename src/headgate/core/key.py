"""Where one rule keeps one subject's state.

A key reads `rl:<dimension>:{<subject>}:<rule>:<algorithm>`. The subject is the hash tag, so that on a cluster
all limits of one subject share a slot and are decided in one atomic step.

A *space* is a key with `*` for the subject: all that a rule fixes once. A store that lives in this process
keeps one table per space and never builds the text of a key; Redis is given `key(space, subject)`.

A rule with `shards` has a space for each: the first is the plain one, the others read `rl:<dimension>:{*#<shard>}:…`,
so that the shards of one subject are in slots of their own.

Subjects, dimensions and rule ids are escaped, so that two of them never make the same key, whatever characters
they contain: everything but letters, digits and `_.-~@` is percent-encoded as UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final
from urllib.parse import quote, unquote

MAX_ESCAPED: Final = 128
_SAFE: Final = re.compile(r"[A-Za-z0-9_.\-~@]{1,128}").fullmatch
_ALL_SAFE: Final = re.compile(r"(?:[A-Za-z0-9_.\-~@]{1,128}\n)*").fullmatch
_EMPTY: Final = "%"  # an empty hash tag would make Redis hash the whole key; a lone % is never an escape


def space(dimension: str, rule: str, algorithm: str) -> str:
    """The key of `rule` with a `*` in the subject's place."""
    return f"rl:{escape(dimension)}:{{*}}:{escape(rule)}:{algorithm}"


def key(space: str, subject: str) -> str:
    """The key of one subject in a space."""
    return space.replace("*", escape(subject), 1)


def shard_space(space: str, shard: int) -> str:
    """The space of one shard, from 0. An escaped subject has no `#` but at its beginning: nobody's key is another's."""
    return space if shard == 0 else space.replace("*", f"*#{shard}", 1)


def dimension_of(space: str) -> str:
    """The dimension whose subjects have their keys in a space; its hash, when it is very long."""
    return unquote(space.split(":", 2)[1], errors="surrogatepass")


def penalty_keys(fact: str, name: str) -> tuple[str, str]:
    """Where a client's block is kept, and its violations. The client is the hash tag, as it is of its own limits."""
    stem = f"rl:penalty:{{{escape(name)}}}:{escape(fact)}"
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


def escaped(texts: Sequence[str]) -> Sequence[str]:
    """Several texts as `escape` has them. Those that are safe as they are, as most are, are found so in one look."""
    together = "\n".join((*texts, ""))
    if _ALL_SAFE(together) and together.count("\n") == len(texts):
        return texts
    return [escape(text) for text in texts]


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
