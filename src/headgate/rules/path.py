"""Normalized paths, and the patterns that match them.

`normal_path` prevents clients from evading a rule by spelling a path differently. In this order:

1. Everything from the first `?` or `#` is removed.
2. Percent-escapes are decoded, and characters that are not allowed in a segment are escaped again, in upper case: so
   `%7Euser`, `%7euser` and `~user` are equal, and so are `caf%c3%a9` and `café`. `%2F` stays: an escaped slash does not
   separate segments. A `%` that does not begin an escape becomes `%25`.
3. Empty segments and `.` are dropped, so that `//` equals `/` and a trailing slash does not matter. `..` removes the
   segment before it, if there is one.
4. The path begins with a slash.

Case matters: `/Search` is not `/search`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes, urlparse

from headgate.errors import InvalidRule

_PLAIN: Final = "!$&'()*+,;=:@"  # allowed in a segment, with letters, digits and -._~ (RFC 3986)
_SEGMENT: Final = re.compile(rf"[\w\-.~{re.escape(_PLAIN)}]+", re.ASCII)
_NORMAL: Final = re.compile(rf"(?:/(?!\.\.?(?:/|\Z)){_SEGMENT.pattern})+", re.ASCII)
_ROUTED: Final = re.compile(r"/[^.%?#]*").fullmatch  # a path that every reader reads alike
_MISREAD: Final = re.compile(r"[%?#]|(?:/|\A)\.\.?(?=/|\Z)")
_PARAMETER: Final = re.compile(r"\{[^\W\d]\w*\}")
_BRACE: Final = re.compile(r"[{}<>]|\A:(?=[^\W\d])").search  # other frameworks write `<id>`, `<int:id>` and `:id`

LITERAL, PARAMETER, REST, EVERYWHERE = range(4)


def normal_path(path: str) -> str:
    """Return the normalized path. Normalized paths are returned unchanged."""
    if path == "/" or _NORMAL.fullmatch(path):
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
    """Return the decoded path that a server passes to an app, spelled so that `normal_path` keeps every segment.

    Apps route a decoded path literally: to them, `/files/..` is a file of that name, and so are `/files/?` and
    `/files/%2E`, which came as `%3F` and `%252E`. Read as parts of a URL, they would be different paths from those that
    are served, and would evade the rules for `/files/*`. If a client sends a whole URL in place of a path, some apps
    route its path.
    """
    if _ROUTED(path):
        return path  # the common case
    if path[:1] != "/":
        with suppress(ValueError):  # not a URL either
            path = urlparse(path).path
    return _MISREAD.sub(_escape_match, path)


def _escape_match(found: re.Match[str]) -> str:
    text = found[0]
    if text in "%?#":
        return quote(text)
    return text.replace(".", "%252E")  # escaped twice: escaped once, it would still mean the parent


def segments_of(path: str) -> list[str]:
    """Return the segments of a normal path."""
    return path[1:].split("/") if len(path) > 1 else []


def _normal_segment(segment: str) -> str:
    return quote(unquote_to_bytes(segment.encode("utf-8", "surrogatepass")), safe=_PLAIN)


class Pattern(NamedTuple):
    """The paths that a rule applies to. Patterns that match the same paths are equal."""

    segments: tuple[str | None, ...]  # None: any one segment
    rest: bool  # whether anything may follow

    @property
    def shape(self) -> tuple[int, ...]:
        """A sort key that puts more specific patterns first, segment by segment: a literal, a parameter, the rest."""
        shape = tuple(PARAMETER if segment is None else LITERAL for segment in self.segments)
        return (*shape, REST) if self.rest else shape

    def __str__(self) -> str:
        """Return the pattern without the names of parameters, which do not matter: `/users/{}/posts`."""
        segments = ["{}" if segment is None else segment for segment in self.segments]
        return "/" + "/".join([*segments, "*"] if self.rest else segments)

    def fits(self, segments: Sequence[str]) -> bool:
        """Return whether it matches the normal path with these segments."""
        count = len(self.segments)
        if len(segments) != count and not (self.rest and len(segments) > count):
            return False
        for mine, theirs in zip(self.segments, segments, strict=False):  # a loop: explanations call this often
            if mine is not None and mine != theirs:
                return False
        return True

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parse a pattern. `{id}` matches any one segment, `/api/*` matches `/api` and all below it, `*` every path.

        Raises `InvalidRule`, also for the parameters of other frameworks: as literal text, they would match no request.
        """
        if not isinstance(text, str) or not (text.startswith("/") or text == "*"):
            raise InvalidRule(f"must be patterns like '/api/search', '/users/{{id}}' or '/api/*', got {text!r}")
        if "?" in text or "#" in text:
            raise InvalidRule(f"{text!r} has a query or a fragment; patterns match the path alone")
        if "*" not in text and "/:" not in text and _NORMAL.fullmatch(text):
            return cls(tuple(text[1:].split("/")), False)
        raw = [segment for segment in text.split("/") if segment]
        rest = bool(raw) and raw[-1] == "*"
        return cls(tuple(_pattern_segment(segment, text) for segment in raw[: -1 if rest else None]), rest)


def _pattern_segment(segment: str, pattern: str) -> str | None:
    if _PARAMETER.fullmatch(segment):
        return None
    if "*" in segment:
        raise InvalidRule(f"{pattern!r} has a * inside; it stands for the rest, as the last segment: '/api/*'")
    if _BRACE(segment):
        raise InvalidRule(
            f"{pattern!r}: cannot read {segment!r}; a parameter is a whole segment in braces: '/users/{{id}}'"
        )
    normal = segment if _SEGMENT.fullmatch(segment) else _normal_segment(segment)
    if normal in (".", ".."):
        raise InvalidRule(f"{pattern!r} has {segment!r} as a segment, which normalized paths never have")
    return normal
