"""Paths as rules see them: one spelling for each, and the patterns that match them.

`normal_path` exists so that a client cannot get around a rule by spelling a path differently. In this order:

1. Everything from the first `?` or `#` is cut off.
2. Percent-escapes are decoded, and what cannot stand for itself in a segment is escaped again, in capitals: so
   `%7Euser`, `%7euser` and `~user` are one, and so are `caf%c3%a9` and `café`. `%2F` stays as it is: an escaped
   slash divides no segments. A `%` that begins no escape counts as `%25`.
3. Empty segments and `.` are dropped, so that `//` is `/` and a slash at the end does not matter; `..` takes the
   segment before it away, and nothing at the root.
4. It begins with a slash.

Letters keep their case: `/Search` is not `/search`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes, urlparse

from headgate.errors import InvalidRule

_PLAIN: Final = "!$&'()*+,;=:@"  # with letters, digits and -._~, what stands for itself in a segment (RFC 3986)
_SEGMENT: Final = re.compile(rf"[\w\-.~{re.escape(_PLAIN)}]+", re.ASCII)
_NORMAL: Final = re.compile(rf"(?:/(?!\.\.?(?:/|\Z)){_SEGMENT.pattern})+", re.ASCII)
_MISREAD: Final = re.compile(r"[%?#]|(?:/|\A)\.\.?(?=/|\Z)")
_PARAMETER: Final = re.compile(r"\{[^\W\d]\w*\}")

LITERAL, PARAMETER, REST, EVERYWHERE = range(4)


def normal_path(path: str) -> str:
    """The one spelling of a path. Normal paths are returned as they are."""
    if _NORMAL.fullmatch(path):
        return path
    segments: list[str] = []
    for raw in re.split(r"[?#]", path, maxsplit=1)[0].split("/"):
        segment = _normal_segment(raw)
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)


def routed_path(path: str) -> str:
    """A path as a server hands it to an app, decoded, in a spelling whose normal form keeps every segment.

    Apps route such a path as it is: to them, `/files/..` is a file of that name, and so are `/files/?` and
    `/files/%2E`, which came as `%3F` and `%252E`. Read as in a URL, they would be other paths than those that are
    served, and a way around the rules for `/files/*`. Of a whole URL, which a client may send in place of a path, some
    route the path.
    """
    if path[:1] == "/" and "." not in path and "%" not in path and "?" not in path and "#" not in path:
        return path  # nearly always
    if path[:1] != "/":
        with suppress(ValueError):  # no URL either
            path = urlparse(path).path
    return _MISREAD.sub(_kept, path)


def _kept(found: re.Match[str]) -> str:
    text = found[0]
    if text in "%?#":
        return quote(text)
    return text.replace(".", "%252E")  # escaped twice: escaped once, it would still be a step up


def segments_of(path: str) -> list[str]:
    """The segments of a normal path."""
    return path[1:].split("/") if len(path) > 1 else []


def _normal_segment(segment: str) -> str:
    return quote(unquote_to_bytes(segment.encode("utf-8", "surrogatepass")), safe=_PLAIN)


class Pattern(NamedTuple):
    """Which paths a rule applies to. Patterns that match the same paths are equal."""

    segments: tuple[str | None, ...]  # None: any one segment
    rest: bool  # whether anything may follow

    @property
    def shape(self) -> tuple[int, ...]:
        """Sorts the more specific first, segment by segment: a literal, a parameter, the rest."""
        shape = tuple(PARAMETER if segment is None else LITERAL for segment in self.segments)
        return (*shape, REST) if self.rest else shape

    def __str__(self) -> str:
        """Without the parameters' names, which do not matter: `/users/{}/posts`."""
        segments = ["{}" if segment is None else segment for segment in self.segments]
        return "/" + "/".join([*segments, "*"] if self.rest else segments)

    def fits(self, segments: Sequence[str]) -> bool:
        """Whether it matches the normal path that has these segments."""
        count = len(self.segments)
        if len(segments) != count and not (self.rest and len(segments) > count):
            return False
        for mine, theirs in zip(self.segments, segments, strict=False):  # a loop: explanations ask thousands of these
            if mine is not None and mine != theirs:
                return False
        return True

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """`/users/{id}/posts`: any one segment for `{id}`. `/api/*`: `/api` and all below it. `*`: every path.

        Raises `InvalidRule`.
        """
        if not isinstance(text, str) or not (text.startswith("/") or text == "*"):
            raise InvalidRule(f"must be patterns like '/api/search', '/users/{{id}}' or '/api/*', got {text!r}")
        if "?" in text or "#" in text:
            raise InvalidRule(f"{text!r} has a query or a fragment; patterns match the path alone")
        if "*" not in text and _NORMAL.fullmatch(text):
            return cls(tuple(text[1:].split("/")), False)
        raw = [segment for segment in text.split("/") if segment]
        rest = bool(raw) and raw[-1] == "*"
        return cls(tuple(_pattern_segment(segment, text) for segment in raw[: -1 if rest else None]), rest)


def _pattern_segment(segment: str, pattern: str) -> str | None:
    if _PARAMETER.fullmatch(segment):
        return None
    if "*" in segment:
        raise InvalidRule(f"{pattern!r} has a * inside; it stands for the rest, as the last segment: '/api/*'")
    if "{" in segment or "}" in segment:
        raise InvalidRule(f"{pattern!r}: {segment!r} cannot be read; a parameter is a whole segment: '/users/{{id}}'")
    normal = segment if _SEGMENT.fullmatch(segment) else _normal_segment(segment)
    if normal in (".", ".."):
        raise InvalidRule(f"{pattern!r} has {segment!r} as a segment, which no path has once it is normal")
    return normal
