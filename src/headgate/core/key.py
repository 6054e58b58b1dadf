"""Keys: where a store keeps the state of one rule for one subject.

In Redis a key reads `<prefix>:<dimension>:{<subject>}:<rule>:<algorithm>`. The subject is the hash tag, so that on a
cluster all limits of one subject share a slot and are decided in one atomic step. The prefix belongs to the store,
which puts it before every key and channel when it encodes a command: everything in this module is without it.

A *key template* is a key with `*` for the subject: the part that depends on the rule alone. A store in this process
keeps one table per key template and never builds the text of a key; Redis gets `key(template, subject)`, behind its
prefix.

A limit that a limiter creates itself, for example for a route, has `<limiter>/<rule>` in place of the rule. Escaped
text never contains `/`, so the limit never shares a key with a rule of the same id or with a limit of another limiter.

A rule with `shards` has one key template per shard: the first is the plain one, the others read
`<dimension>:{*#<shard>}:…`, so that the shards of one subject are in different cluster slots.

Subjects, dimensions and rule ids are escaped, so that two of them never make the same key, whatever characters they
contain: everything but letters, digits and `_.-~@` is percent-encoded as UTF-8.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final
from urllib.parse import quote, unquote

DEFAULT_PREFIX: Final = "rl"
MAX_PREFIX: Final = 64
MAX_ESCAPED: Final = 128
REMEMBERED: Final = 4_096  # escaped texts, such as subjects of several facts
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.\-]+(?::[A-Za-z0-9_.\-]+)*").fullmatch
_SAFE: Final = re.compile(r"[A-Za-z0-9_.\-~@]{1,128}").fullmatch
_EMPTY: Final = "%"  # with an empty hash tag, Redis would hash the whole key; a lone % is never an escape


def checked_prefix(prefix: str) -> str:
    """Return `prefix` if it is a valid key prefix. Raises `ValueError`."""
    if isinstance(prefix, str) and len(prefix) <= MAX_PREFIX and _PREFIX(prefix):
        return prefix
    raise ValueError(
        f"must be 1 to {MAX_PREFIX} letters, digits, '_', '-' and '.', in parts that ':' may separate, "
        f"as in 'shop-a' or 'prod:shop-a', got {prefix!r}"
    )


def key_template(dimension: str, rule: str, algorithm: str, *, limiter: str | None = None) -> str:
    """Return the key of `rule` with `*` for the subject. `limiter` names the limiter that created the rule, if any."""
    name = escape(rule) if limiter is None else qualified_name(limiter, rule)
    return f"{escape(dimension)}:{{*}}:{name}:{algorithm}"


def qualified_name(limiter: str, name: str) -> str:
    """Return the name of something that a limiter created itself. Unique, and different from every escaped text."""
    return f"{escape(limiter)}/{escape(name)}"


def key(key_template: str, subject: str) -> str:
    """Return the key of one subject."""
    return key_template.replace("*", escape(subject), 1)


def shard_key_template(key_template: str, shard: int) -> str:
    """Return the key template of one shard. Shards count from 0.

    An escaped subject contains `#` only as its first character, so the keys of two subjects never collide.
    """
    return key_template if shard == 0 else key_template.replace("*", f"*#{shard}", 1)


def dimension_of(key_template: str) -> str:
    """Return the dimension of a key template, or its hash if the dimension is very long."""
    return unquote(key_template.split(":", 1)[0], errors="surrogatepass")


def penalty_keys(fact: str, name: str) -> tuple[str, str]:
    """Return the keys of a client's block and of its violations. The client is the hash tag, as in its limits' keys."""
    stem = f"penalty:{{{escape(name)}}}:{escape(fact)}"
    return f"{stem}:block", f"{stem}:violations"


def escape(text: str) -> str:
    """Return `text` in characters that are safe in a key: unique per text, and at most 128 characters long.

    A longer result is replaced by `#` and a 256-bit hash. Percent-encoded text never contains `#`.
    """
    if _SAFE(text):
        return text
    if not text:
        return _EMPTY
    if len(text) <= MAX_ESCAPED:
        escaped = _percent_encode(text)
        if len(escaped) <= MAX_ESCAPED:
            return escaped
    return "#" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


@lru_cache(maxsize=REMEMBERED)
def _percent_encode(text: str) -> str:
    return quote(text, safe="@", errors="surrogatepass")


def join_facts(parts: tuple[str, ...]) -> str:
    """Join several facts into one subject (`user+endpoint`). Lengths come first, so that no two lists collide."""
    return "".join([f"{len(part)}:{part}" for part in parts])


def split_facts(subject: str) -> tuple[str, ...]:
    """Return the facts that `join_facts` joined into a subject."""
    parts = []
    while subject:
        length, _, rest = subject.partition(":")
        parts.append(rest[: int(length)])
        subject = rest[int(length) :]
    return tuple(parts)
