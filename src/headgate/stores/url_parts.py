"""The parts of a store's URL. No error message shows anything that may be a password."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from headgate.core.key import checked_prefix

_AUTHORITY: Final = re.compile(r"(?<=://)[^/?#]*").search  # user, password and hosts


def parts_of(url: str) -> SplitResult:
    """Split a URL. Raises `ValueError` if a delimiter is not escaped, as often happens in generated passwords."""
    try:
        parts = _split(url)
    except ValueError:
        raise ValueError(_message_of("it cannot be parsed")) from None
    to_host = parts.scheme.partition("+")[0] in ("redis", "rediss")  # others have no host, and any path
    if "#" in url or (to_host and "@" in parts.path + parts.query):
        raise ValueError(_message_of("a / ? # or @ is in the wrong place"))
    return parts


def _split(url: str) -> SplitResult:
    """Split a URL that may have several hosts. Newer versions of `urlsplit` reject lists with IPv6 addresses."""
    authority = _AUTHORITY(url)
    if authority is None or "," not in authority[0]:
        return urlsplit(url)
    return urlsplit(url[: authority.start()] + url[authority.end() :])._replace(netloc=authority[0])


def read_prefix(value: str) -> str:
    """Parse the option `prefix`, with which all keys and channels of a store begin. Raises `ValueError`."""
    try:
        return checked_prefix(value)
    except ValueError as error:
        raise ValueError(f"store URL: prefix: {error}") from None


def with_prefix(url: str, prefix: str | None) -> str:
    """Return the URL with a prefix, unless it has its own."""
    options = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    if prefix is None or any(name == "prefix" for name, _ in options):
        return url
    return f"{url}{'&' if '?' in url else '?'}prefix={prefix}"


def _message_of(what: str) -> str:
    return f"store URL: {what}: in user, password, path and options, escape / ? # @ as %2F %3F %23 %40"
